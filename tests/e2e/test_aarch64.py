"""The library and the C trainer compiled for aarch64, under qemu, with this machine's agent: the layout is the same.

On a processor that orders memory strictly, qemu orders it so too: this does not test memory barriers.
"""

import os
import pathlib
import shutil
import subprocess

import monitored
import native
import pytest
from monitored import EVERYTHING, run_monitored, run_plain

LIBRARIES = "/usr/aarch64-linux-gnu"  # glibc of the cross compiler
QEMU = ["qemu-aarch64-static", "-L", LIBRARIES]
STEPS, LAYERS = 200, 2


def run(*words: object) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the C trainer, linked with the library."""
    for tool, package in (("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"), (QEMU[0], "qemu-user-static")):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here (package {package}): nothing is tried on aarch64")
    build = tmp_path_factory.mktemp("aarch64")
    settings = [f"-DCMAKE_TOOLCHAIN_FILE={monitored.ROOT / 'cmake' / 'aarch64.cmake'}", "-DFORESHOCK_AGENT=OFF"]
    # -O0, because compiling takes most of this test's time.
    settings += ["-DFORESHOCK_DEVICE_CODE=OFF", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O0"]
    run("cmake", "-S", monitored.ROOT, "-B", build, "-G", "Ninja", *settings)
    run("cmake", "--build", build, "--target", "foreshock_monitor", "--parallel", os.cpu_count() or 1)
    program, library = build / "c_trainer", build / "lib" / "libforeshock.so"
    linked = ["-Wl,--no-as-needed", library, f"-Wl,-rpath,{library.parent}", "-lm"]
    source = native.CXX / "c_trainer.c"
    run("aarch64-linux-gnu-gcc", *native.C_FLAGS, f"-I{native.INCLUDE}", source, *linked, "-o", program)
    return [*QEMU, str(program), str(STEPS)]


def test_c_trainer_is_judged(trainer: list[str], tmp_path: pathlib.Path):
    plain = run_plain([*trainer, str(tmp_path / "alone")])
    run = run_monitored([*trainer, str(tmp_path / "watched")], *EVERYTHING)
    assert plain.returncode == run.returncode == 0, run.stderr
    assert (tmp_path / "alone").read_bytes() == (tmp_path / "watched").read_bytes(), "the training's bits"
    rank = run.rank()
    monitored.assert_conserved(rank)
    assert rank["steps"] == STEPS
    for of in rank["attention"].values():
        assert of["calls"] == STEPS * LAYERS
        assert of["judged"] > 0
    assert all(sample["relative_error_max"] < 1e-5 for sample in run.of("sample"))  # fp32 loops: rounding
    assert run.summary["verdict"] == "PARTLY CHECKED", run.stderr  # the trainer does not describe dK and dV
