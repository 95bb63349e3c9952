"""Foreshock as a dependency: installed and found by CMake or pkg-config, and as a part of another tree."""

import os
import pathlib
import shlex
import subprocess

import monitored
import native
import pytest
from segment_file import segments

FOLDER = pathlib.Path(__file__).resolve().parent
CALLS = 7  # of linked.c


def run(*command: str | pathlib.Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory) -> pathlib.Path:
    """An installation, moved after it was made: nothing in it knows where it was."""
    folder = tmp_path_factory.mktemp("install")
    run("cmake", "--install", monitored.BUILD, "--prefix", folder / "made")
    return (folder / "made").rename(folder / "moved")


def build_consumer(folder: pathlib.Path, *settings: str) -> pathlib.Path:
    run("cmake", "-S", FOLDER, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *settings)
    run("cmake", "--build", folder)
    return folder


def check(folder: pathlib.Path, library: pathlib.Path, base: pathlib.Path) -> None:
    """All programs alone do nothing; monitored, those that are linked are by that, the other by a preload."""
    assert run(folder / "linked") == "abi 1 enabled 0\n"
    assert run(folder / "annotated") == run(folder / "annotated_linked") == "enabled 0\n"
    (base / "run").mkdir(mode=0o700)
    environment = {"FORESHOCK_DIR": str(base), "FORESHOCK_RUN_ID": "run"}
    assert run(folder / "linked", **environment) == "abi 1 enabled 1\n"
    (segment,) = segments(base / "run")
    assert segment.attention()["forward"]["calls"] == CALLS
    assert run(folder / "annotated", RANK="1", LD_PRELOAD=str(library), **environment) == "enabled 1\n"
    assert run(folder / "annotated_linked", RANK="2", **environment) == "enabled 1\n"


def test_find_package(prefix, tmp_path, base):
    build = build_consumer(tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    check(build, prefix / "lib" / "libforeshock.so", base)


def test_find_package_under_a_path_with_spaces(tmp_path, base):
    """Such a library cannot be preloaded, but it can be linked."""
    prefix = tmp_path / "a prefix"
    run("cmake", "--install", monitored.BUILD, "--prefix", prefix)
    build = build_consumer(tmp_path / "a build", f"-DCMAKE_PREFIX_PATH={prefix}")
    (base / "run").mkdir(mode=0o700)
    environment = {"FORESHOCK_DIR": str(base), "FORESHOCK_RUN_ID": "run"}
    assert run(build / "linked", **environment) == "abi 1 enabled 1\n"
    assert run(build / "annotated_linked", RANK="1", **environment) == "enabled 1\n"


def test_soname_has_the_version_of_the_interface(prefix):
    """A later library with another interface would not be taken for this one."""
    text = run("readelf", "-dW", prefix / "lib" / "libforeshock.so")
    assert "soname: [libforeshock.so.1]" in text
    assert (prefix / "lib" / "libforeshock.so.1").resolve() == (prefix / "lib" / "libforeshock.so").resolve()


@pytest.mark.long
def test_add_subdirectory(tmp_path, base):
    """Only the guest library is built, so nothing of what the agent needs has to be there."""
    hidden = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("Boost", "spdlog", "prometheus-cpp", "hwy")]
    build = build_consumer(tmp_path, f"-DFORESHOCK_SOURCE={monitored.ROOT}", *hidden)
    (library,) = build.rglob("libforeshock.so")
    check(build, library, base)


def test_pkg_config(prefix, tmp_path, base):
    where = {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = shlex.split(run("pkg-config", "--cflags", "--libs", "foreshock", **where))
    version = run("pkg-config", "--modversion", "foreshock", **where).strip()
    assert version == run(prefix / "bin" / "foreshock", "--version").split()[-1]
    headers = shlex.split(run("pkg-config", "--cflags", "foreshock", **where))
    rpath = f"-Wl,-rpath,{prefix / 'lib'}"
    for name, program, words in (
        ("linked", "linked", flags),
        ("annotated", "annotated_linked", flags),
        ("annotated", "annotated", headers),
    ):
        source = FOLDER / f"{name}.c"
        run(native.c_compiler(), *native.C_FLAGS, source, "-o", tmp_path / program, "-Wl,--as-needed", *words, rpath)
    check(tmp_path, prefix / "lib" / "libforeshock.so", base)


def test_the_installed_command_works(prefix):
    assert (prefix / "share" / "foreshock" / "examples" / "c_trainer.c").exists()
    shown = monitored.run_plain([str(prefix / "bin" / "foreshock"), "doctor"])
    assert f"{prefix}/lib/libforeshock.so" in shown.stdout
