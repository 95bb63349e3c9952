"""./dev package in two folders: equal packages, hardened binaries, and what the validators of others say of them."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import package
import pytest

pytestmark = pytest.mark.long
ROOT = package.ROOT


def run(*words: object, **more: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def packages_built_in(folder: pathlib.Path, *options: str) -> dict[str, pathlib.Path]:
    """By name, from a copy of this tree. `options` of ./dev package."""
    for name in run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    (folder / ".venv").symlink_to(sys.prefix)
    program = folder / "packaging" / "package.py"
    run(sys.executable, program, *options, env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"})
    (output,) = (folder / "build").glob("packages*")
    return {path.name: path for path in output.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    return packages_built_in(tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def tree(built: dict[str, pathlib.Path], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(next(path for name, path in built.items() if name.endswith(".tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def validators(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("validators") / "venv"
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "-q", "-r", ROOT / "packaging" / "validators.txt")
    return folder / "bin"


def digests(packages: dict[str, pathlib.Path]) -> dict[str, str]:
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in packages.items()}


def test_two_builds_in_two_folders_are_equal(built, tmp_path_factory):
    other = packages_built_in(tmp_path_factory.mktemp("second-with-a-longer-name"))
    assert digests(built) == digests(other)


def test_two_builds_for_aarch64_are_equal(tmp_path_factory):
    if shutil.which("aarch64-linux-gnu-g++") is None or shutil.which("qemu-aarch64-static") is None:
        pytest.skip("no cross compiler or no qemu here")
    names = ("first-for-aarch64", "second-for-aarch64-with-a-longer-name")
    one, other = (packages_built_in(tmp_path_factory.mktemp(name), "--arch", "aarch64") for name in names)
    assert len(one) == 2
    assert digests(one) == digests(other)


@pytest.mark.parametrize("name", ["bin/foreshock", "lib/libforeshock.so", "adapter.so"])
def test_binaries_are_hardened(tree, name):
    (binary,) = tree.glob(f"share/foreshock/adapters/*/{name}") if name == "adapter.so" else [tree / name]
    dynamic, symbols = run("readelf", "-dW", binary), run("readelf", "--dyn-syms", "-W", binary)
    assert re.search(r"BIND_NOW|Flags:.*\bNOW\b", dynamic)
    assert "GNU_RELRO" in run("readelf", "-lW", binary)
    assert "__stack_chk_fail" in symbols
    if name == "bin/foreshock":  # the library formats and copies little of what fortify checks
        assert re.search(r"__\w+_chk@", symbols)
        assert "PIE" in dynamic
    if os.uname().machine == "x86_64":
        assert run("objdump", "-d", "--no-show-raw-insn", binary).count("endbr64") > 50


def test_validators_accept_the_packages(built, tree, validators):
    (wheel,) = (path for path in built.values() if path.suffix == ".whl")
    run(validators / "twine", "check", "--strict", wheel)
    shown = run(validators / "auditwheel", "show", wheel)
    claimed = re.search(r"manylinux_\d+_\d+", wheel.name).group()
    assert claimed in re.sub(r"\s+", " ", shown), shown
    run(validators / "pyspdxtools", "--infile", tree / package.DOCUMENTS / package.SBOM)


def test_reuse_lint_is_clean(validators):
    run(validators / "reuse", "lint", cwd=ROOT)


def test_library_builds_with_clang_without_a_warning(tmp_path):
    settings = ["-DCMAKE_C_COMPILER=clang", "-DCMAKE_CXX_COMPILER=clang++", "-DFORESHOCK_AGENT=OFF"]
    settings += ["-DFORESHOCK_TESTS=OFF", "-DFORESHOCK_BENCH=OFF", "-DFORESHOCK_WERROR=ON", "-DCMAKE_BUILD_TYPE=Debug"]
    run("cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", *settings)
    run("cmake", "--build", tmp_path, "--target", "foreshock_monitor", "--parallel", os.cpu_count() or 1)
