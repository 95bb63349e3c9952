"""What the build makes for devices: machine code for each architecture, PTX for later ones, every kernel in each.
Without a toolkit the library is built without it."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest
from fatbin import BUILD, ELF, FATBIN, PTX, ROOT, frame_sizes, images, oldest_driver

pytestmark = pytest.mark.quick


def kernel_names() -> list[str]:
    header = (ROOT / "kernels" / "device_code.h").read_text()
    return re.findall(r'"(foreshock_\w+)"', header)


@pytest.fixture
def fatbin() -> bytes:
    if not FATBIN.exists():
        pytest.skip("built without nvcc")
    return FATBIN.read_bytes()


def test_machine_code_and_ptx_of_each_architecture(fatbin):
    """ABI 7 is that of the assembler of CUDA 12.0, which makes code for every driver from 525 on."""
    found = images(fatbin)
    ours = [(image.architecture, image.abi) for image in found if image.kind == ELF]
    if oldest_driver() == 12000:
        assert ours == [(80, 7), (86, 7), (89, 7), (90, 7), (100, 8), (103, 8), (120, 8)]
    else:  # of the ptxas of nvcc
        assert [architecture for architecture, _ in ours] == [80, 90, 100, 120]
    assert [(image.kind, image.architecture) for image in found[len(ours) :]] == [(PTX, 80)]
    (version,) = re.findall(rb"^\.version (.+)$", found[-1].data, re.MULTILINE)
    assert version == b"8.0" or oldest_driver() > 12000


def test_every_kernel_is_in_each(fatbin):
    names = kernel_names()
    assert len(names) == 9
    for image in images(fatbin):
        assert image.data.startswith(b"\x7fELF") == (image.kind == ELF)
        marks = [f".text.{name}\0" if image.kind == ELF else f".entry {name}(" for name in names]
        assert [mark for mark in marks if mark.encode() not in image.data] == [], image.architecture


def test_no_kernel_keeps_registers_in_memory(fatbin, tmp_path):
    for image in images(fatbin):
        if image.kind == ELF:
            sizes = frame_sizes(image.data)
            assert (len(sizes) >= len(kernel_names()), set(sizes)) == (True, {0}), image.architecture
    # The same PTX with too few registers: the build would stop here, and the check above would fail.
    ptx, cubin = tmp_path / "spilled.ptx", tmp_path / "spilled.cubin"
    ptx.write_bytes(re.sub(rb"\.maxntid .*", b".maxnreg 24", images(fatbin)[-1].data.rstrip(b"\0")))
    words = [assembler(), "-arch", "sm_80", "--fmad", "false", "-o", cubin, ptx]
    subprocess.run(words, check=True, capture_output=True)
    assert max(frame_sizes(cubin.read_bytes())) > 0
    strict = [*words, "--warn-on-spills", "--warning-as-error"]
    assert subprocess.run(strict, check=False, capture_output=True).returncode != 0


def assembler() -> str:
    """The one that makes the code for sm_80."""
    rules = (BUILD / "build.ninja").read_text()
    return re.search(r"(\S*ptxas) -arch sm_80 ", rules)[1]


def test_every_sum_is_rounded(fatbin):
    """An assembler, and a driver that assembles PTX, may contract a product and a sum that name no rounding."""
    text = images(fatbin)[-1].data
    assert re.findall(rb"\b(?:add|sub|mul|mad)\.(?:ftz\.)?f(?:32|64)\b", text) == []
    assert re.findall(rb"\bmul\.rn\.f32\b", text)


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
    return done.stdout + done.stderr


@pytest.mark.parametrize("option", ["-DFORESHOCK_DEVICE_CODE=OFF", "-DFORESHOCK_NVCC=/bin/false"])
def test_without_a_toolkit_there_is_none(option, tmp_path):
    said = configure(tmp_path, option)
    assert "device-code, kernels for devices" in said.split("The following features have been disabled:")[1]
    assert ("/bin/false is left alone" in said) == ("NVCC" in option)
    subprocess.run(["cmake", "--build", tmp_path, "--target", "foreshock_kernels"], check=True, capture_output=True)
    assert embedded_in(tmp_path / "kernels" / "libforeshock_kernels.a", tmp_path) == b""
    assert not (tmp_path / "lib" / "libforeshock.fatbin").exists()


@pytest.mark.long
def test_without_the_assemblers_nvcc_makes_the_machine_code(fatbin, tmp_path):
    said = configure(tmp_path, "-DFORESHOCK_PTXAS=/nowhere")
    major = re.search(r"Kernels for devices will need a driver of CUDA (\d+)\.0 or later: /nowhere has no", said)[1]
    subprocess.run(["cmake", "--build", tmp_path, "--target", "device_code", "foreshock_kernels"], check=True)
    found = images((tmp_path / "lib" / "libforeshock.fatbin").read_bytes())
    assert [image.architecture for image in found] == [80, 90, 100, 120, 80]
    assert f".oldest_driver = {major}000" in (tmp_path / "kernels" / "device_seal.inc").read_text()
