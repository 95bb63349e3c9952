"""Reads the kernels for devices of a build: the entries of the container, and what their machine code needs."""

from __future__ import annotations

import os
import pathlib
import re
import struct
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release"))
FATBIN = BUILD / "lib" / "libforeshock.fatbin"
PTX, ELF = 1, 2


class Image(NamedTuple):
    kind: int
    architecture: int
    header: int  # offset in the container
    data: bytes

    @property
    def abi(self) -> int:
        """EI_ABIVERSION of machine code: drivers before CUDA 12.8 load 7 and older ones."""
        return self.data[8]


def images(fatbin: bytes) -> list[Image]:
    """The entries of the container, each behind a header of its own. None may be compressed."""
    magic, version, header_size, size = struct.unpack_from("<IHHQ", fatbin)
    assert (magic, version, header_size + size) == (0xBA55ED50, 1, len(fatbin))
    found, at = [], header_size
    while at < len(fatbin):
        kind, _, own_header, length = struct.unpack_from("<HHIQ", fatbin, at)
        packed, _, _, architecture = struct.unpack_from("<4I", fatbin, at + 16)
        assert packed == 0, "drivers before CUDA 12.4 do not unpack every compression"
        found.append(Image(kind, architecture, at, fatbin[at + own_header : at + own_header + length]))
        at += own_header + length
    assert at == len(fatbin)
    return found


def frame_sizes(elf: bytes) -> list[int]:
    """Bytes of local memory that each function of machine code takes on the stack: where registers are spilled."""
    (headers,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<3H", elf, 58)
    sections = [struct.unpack_from("<IIQQQQ", elf, headers + n * size) for n in range(count)]
    found = []
    for name, _, _, _, at, length in sections:
        start = sections[names][4] + name
        if elf[start : elf.index(b"\0", start)] != b".nv.info":
            continue
        end = at + length
        while at < end:  # attributes: format, kind, and a value or the size of what follows
            form, kind, value = struct.unpack_from("<BBH", elf, at)
            if (form, kind) == (4, 0x11):  # EIATTR_FRAME_SIZE: symbol, bytes
                found.append(struct.unpack_from("<2I", elf, at + 4)[1])
            at += 4 + (value if form == 4 else 0)
    return found


def oldest_driver() -> int:
    """The oldest driver that loads the kernels of this build, as the build has found it."""
    return int(re.search(r"oldest_driver = (\d+)", (BUILD / "kernels" / "device_seal.inc").read_text())[1])
