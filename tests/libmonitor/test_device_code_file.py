"""The kernels for devices lie in a file beside the preloaded library, which is read at the first tensor on a device."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import fatbin
import monitored
import pytest

pytestmark = pytest.mark.quick

PROGRAM = monitored.BUILD / "bin" / "device_code_program"
KERNELS = monitored.LIBRARY.with_name("libforeshock.fatbin")
IN_OPEN, NONBLOCKING = 0x20, os.O_NONBLOCK


class Watch:
    """Whether anybody has opened a file since."""

    def __init__(self, path: pathlib.Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.queue = libc.inotify_init1(NONBLOCKING)
        assert libc.inotify_add_watch(self.queue, os.fsencode(path), IN_OPEN) > 0, os.strerror(ctypes.get_errno())

    def opened(self) -> int:
        try:
            return len(os.read(self.queue, 4096)) // 16  # no names: the watch is on the file itself
        except BlockingIOError:
            return 0
        finally:
            os.close(self.queue)


@pytest.fixture
def library(tmp_path):
    """An installation of its own."""
    if not KERNELS.exists():
        pytest.skip("built without nvcc")
    shutil.copy(KERNELS, tmp_path)
    return pathlib.Path(shutil.copy(monitored.LIBRARY, tmp_path))


def train(library: pathlib.Path, where: str, preload: str = "", **variables: str) -> dict:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="foreshock-test-") as base:
        (pathlib.Path(base) / "r").mkdir()
        environment = monitored.clean_environment(
            LD_PRELOAD=preload or str(library),
            FORESHOCK_DIR=base,
            FORESHOCK_RUN_ID="r",
            FORESHOCK_EVERY="1",
            FORESHOCK_MAX_SLOWDOWN="100%",
            **variables,
        )
        image = library.with_name("image")
        done = subprocess.run(
            [PROGRAM, where, image], env=environment, cwd=library.parent, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        segments = list((pathlib.Path(base) / "r").glob("*.seg"))
        assert len(segments) == 1, "it was monitored"
        return json.loads(done.stdout) | {"image": image.read_bytes()}


def test_the_driver_is_given_the_bytes_of_the_file(library):
    watch = Watch(library.with_name(KERNELS.name))
    told = train(library, "cuda")
    assert (told["images"], told["descriptors"], told["objections"]) == (1, 0, 0)
    assert told["image"] == KERNELS.read_bytes()
    assert watch.opened() == 1


@pytest.mark.parametrize("preload", ["./libforeshock.so", "../{folder}/libforeshock.so"])
def test_a_library_that_was_preloaded_by_a_relative_path_finds_its_file(library, preload):
    """The program goes to another folder before there is a tensor on a device."""
    told = train(library, "cuda", preload.format(folder=library.parent.name))
    assert told["images"] == 1
    assert told["image"] == KERNELS.read_bytes()


# Architectures of devices (90: sm_90) that each branch of drivers has, by the version of CUDA that it reports.
DRIVERS = {
    "525": (12000, (80, 86, 87, 89, 90)),
    "535": (12020, (80, 86, 89, 90)),
    "550": (12040, (80, 86, 89, 90)),
    "570": (12080, (80, 86, 89, 90, 100, 120)),
    "580": (13000, (80, 86, 89, 90, 100, 103, 110, 120, 121)),
}


def load_error(code: bytes, version: int, device: int) -> int:
    """What a stand-in of this driver returns for the container `code`; 0: it loads an image of it."""
    driver = ctypes.CDLL(str(monitored.BUILD / "lib" / "fake_cuda" / "libcuda.so.1"))
    return driver.fake_cuda_load_error(code, ctypes.c_size_t(len(code)), version, device)


def test_a_driver_refuses_what_is_too_new_for_it(library):
    code = KERNELS.read_bytes()
    newer = bytearray(code)
    for image in fatbin.images(code):
        at = code.index(image.data)
        if image.kind == fatbin.ELF:
            newer[at + 8] = 8  # the ABI version
        else:
            newer[at : at + len(image.data)] = image.data.replace(b".version 8.0", b".version 9.0")
    errors = [load_error(bytes(newer), version, 80) != 0 for version, _ in DRIVERS.values()]
    assert errors[:3] == [True, True, True]
    assert not errors[-1]
    assert load_error(code, 11080, 80) != 0
    assert load_error(code, 12000, 100) != 0, "an architecture that it does not know"
    packed = bytearray(code)
    for image in fatbin.images(code):
        packed[image.header + 16] = 1  # the size of compressed data, which the stand-in does not unpack
    assert all(load_error(bytes(packed), version, 80) != 0 for version, _ in DRIVERS.values())


@pytest.mark.parametrize("branch", DRIVERS)
def test_each_driver_loads_the_file_for_each_of_its_devices(library, branch):
    """fake_cuda/images.cpp decides what a driver loads."""
    version, devices = DRIVERS[branch]
    loads = version >= fatbin.oldest_driver()
    code = KERNELS.read_bytes()
    for device in devices:
        assert (load_error(code, version, device) == 0) == loads, device
    variables = {"FAKE_CUDA_VERSION": str(version), "FAKE_CUDA_ARCHITECTURE": str(devices[-1])}
    told = train(library, "cuda", **variables)
    assert (told["images"], told["objections"]) == (int(loads), 0)
    assert (told["image"] == code) == loads


def test_without_a_tensor_on_a_device_nothing_is_opened_or_taken(library):
    watch = Watch(library.with_name(KERNELS.name))
    told = train(library, "cpu")
    assert told == {"images": 0, "pages": 0, "descriptors": 0, "objections": 0, "image": b""}
    assert watch.opened() == 0
    assert KERNELS.read_bytes()[:64] not in monitored.LIBRARY.read_bytes()


@pytest.mark.parametrize("how", ["missing", "short", "of_another_build"])
def test_any_other_file_is_none(library, how):
    kernels = library.with_name(KERNELS.name)
    code = bytearray(kernels.read_bytes())
    code[len(code) // 2] ^= 1
    kernels.unlink()
    if how != "missing":
        kernels.write_bytes(code if how == "of_another_build" else code[:1000])
    told = train(library, "cuda")
    assert (told["images"], told["descriptors"], told["image"]) == (0, 0, b"")


def test_installed_beside_the_library(tmp_path):
    done = subprocess.run(
        ["cmake", "--install", monitored.BUILD, "--prefix", tmp_path, "--strip"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    installed = tmp_path / "lib" / KERNELS.name
    assert installed.exists() == KERNELS.exists()
    if KERNELS.exists():
        assert train(tmp_path / "lib" / "libforeshock.so", "cuda")["image"] == KERNELS.read_bytes()
