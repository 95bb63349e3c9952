"""Unit tests compiled for aarch64, under qemu: the slots of the segment, and vector instructions against scalar ones.

On x86-64 qemu runs loads and stores in the order of the program, so the barriers of the slots are not tested here; a
comment in segment/writer.cpp says which ones order them.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import dependencies
import package
import pytest

pytestmark = pytest.mark.long
MACHINE = "aarch64"
PROGRAMS = [
    "segment_test", "shadow_elementary_test", "shadow_key_columns_test", "shadow_noise_floor_test",
    "shadow_reference_test",
]  # fmt: skip


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    try:
        dependencies.require_tools(MACHINE)
    except dependencies.DependencyError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("aarch64")
    libraries = dependencies.LIBRARIES | dependencies.TEST_LIBRARIES
    prefix = dependencies.build_all(package.DEPENDENCIES / MACHINE, MACHINE, libraries)
    settings = [f"-DCMAKE_PREFIX_PATH={prefix}", *dependencies.cmake_settings(MACHINE), "-DFORESHOCK_DEVICE_CODE=OFF"]
    package.run("cmake", "-S", package.ROOT, "-B", folder, "-G", "Ninja", *settings)
    package.run("cmake", "--build", folder, "--parallel", str(os.cpu_count() or 1), "--target", *PROGRAMS)
    return folder


@pytest.mark.parametrize("program", PROGRAMS)
def test_unit_tests_pass(build: pathlib.Path, program: str):
    command = [*dependencies.emulator(MACHINE), build / "bin" / program, "--gtest_brief=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
