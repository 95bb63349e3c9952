"""What the build makes for devices: machine code for each architecture, PTX for later ones, every kernel in each.
Without a toolkit the library is built without it."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import pathlib
import re
import struct
import subprocess
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release"))
FATBIN = BUILD / "lib" / "libforeshock.fatbin"
PTX, ELF = 1, 2


class Image(NamedTuple):
    kind: int
    architecture: int
    data: bytes


def unpack(data: bytes, size: int) -> bytes:
    library = ctypes.util.find_library("zstd")
    if library is None or not data.startswith(b"\x28\xb5\x2f\xfd"):
        pytest.skip("compressed by other means than the zstd that is here")
    zstd, out = ctypes.CDLL(library), ctypes.create_string_buffer(size)
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    arguments = (out, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data)))
    assert zstd.ZSTD_decompress(*arguments) == size
    return out.raw


def images(fatbin: bytes) -> list[Image]:
    """The entries of the container, each behind a header of its own."""
    magic, version, header_size, size = struct.unpack_from("<IHHQ", fatbin)
    assert (magic, version, header_size + size) == (0xBA55ED50, 1, len(fatbin))
    found, at = [], header_size
    while at < len(fatbin):
        kind, _, own_header, length = struct.unpack_from("<HHIQ", fatbin, at)
        packed, _, _, architecture = struct.unpack_from("<4I", fatbin, at + 16)
        (unpacked,) = struct.unpack_from("<I", fatbin, at + 56)
        data = fatbin[at + own_header : at + own_header + (packed or length)]
        found.append(Image(kind, architecture, unpack(data, unpacked) if packed else data))
        at += own_header + length
    assert at == len(fatbin)
    return found


def kernel_names() -> list[str]:
    header = (ROOT / "kernels" / "device_code.h").read_text()
    return re.findall(r'"(foreshock_\w+)"', header)


@pytest.fixture
def fatbin() -> bytes:
    if not FATBIN.exists():
        pytest.skip("built without nvcc")
    return FATBIN.read_bytes()


def test_machine_code_and_ptx_of_each_architecture(fatbin):
    assert [(image.kind, image.architecture) for image in images(fatbin)] == [
        (ELF, 80),
        (ELF, 90),
        (ELF, 100),
        (PTX, 100),
    ]


def test_every_kernel_is_in_each(fatbin):
    names = kernel_names()
    assert len(names) == 9
    for image in images(fatbin):
        assert image.data.startswith(b"\x7fELF") == (image.kind == ELF)
        marks = [f".text.{name}\0" if image.kind == ELF else f".entry {name}(" for name in names]
        assert [mark for mark in marks if mark.encode() not in image.data] == [], image.architecture


def test_it_is_small(fatbin):
    """Packed and without tables of lines: 178 KB; with neither it was 1.8 MB."""
    assert len(fatbin) < 400_000


PROGRAM = """
#include <cstdio>
#include "kernels/device_code.h"
int main() {
  const auto code = foreshock::DeviceCode();
  return std::fwrite(code.data(), 1, code.size(), stdout) == code.size() ? 0 : 1;
}
"""


def embedded_in(archive: pathlib.Path, folder: pathlib.Path) -> bytes:
    (folder / "program.cpp").write_text(PROGRAM)
    program = folder / "program"
    subprocess.run(["g++", "-std=c++20", f"-I{ROOT}", folder / "program.cpp", archive, "-o", program], check=True)
    return subprocess.run([program], check=True, capture_output=True).stdout


def test_programs_of_our_own_hold_it(fatbin, tmp_path):
    assert embedded_in(BUILD / "kernels" / "libforeshock_kernels.a", tmp_path) == fatbin


def configure(folder: pathlib.Path, *options: str) -> str:
    done = subprocess.run(
        [
            "cmake",
            "-G",
            "Ninja",
            "-S",
            ROOT,
            "-B",
            folder,
            "-DFORESHOCK_AGENT=OFF",
            "-DCMAKE_BUILD_TYPE=Debug",
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    disabled = done.stdout.split("The following features have been disabled:")[1]
    return disabled + done.stderr


@pytest.mark.parametrize("option", ["-DFORESHOCK_DEVICE_CODE=OFF", "-DFORESHOCK_NVCC=/bin/false"])
def test_without_a_toolkit_there_is_none(option, tmp_path):
    said = configure(tmp_path, option)
    assert "device-code, kernels for devices" in said
    assert ("/bin/false is left alone" in said) == ("NVCC" in option)
    subprocess.run(["cmake", "--build", tmp_path, "--target", "foreshock_kernels"], check=True, capture_output=True)
    assert embedded_in(tmp_path / "kernels" / "libforeshock_kernels.a", tmp_path) == b""
    assert not (tmp_path / "lib" / "libforeshock.fatbin").exists()
