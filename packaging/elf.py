"""Reads the shared libraries and symbol versions that a binary needs, and compares them with those of Debian 11."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

# The highest symbol versions of Debian 11, the oldest supported system: glibc 2.31 and the C++ runtime of GCC 10.
DEBIAN_11 = {"GLIBC": (2, 31), "GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12)}


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def needed(path: Path) -> set[str]:
    """The shared libraries that a binary names as dependencies."""
    text = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))


# The shared libraries that a binary may need: parts of glibc and, for an adapter, libraries that torch has loaded into
# the process. All other code must be in the binary itself.
OF_GLIBC = re.compile(r"(libc|libm|libdl|librt|libpthread|ld-linux-[\w-]+)\.so\.\d+")
OF_TORCH = {"libtorch_cpu.so", "libc10.so", "libstdc++.so.6", "libgcc_s.so.1"}


def problems(path: Path) -> list[str]:
    """A line for each reason why a binary may fail on other machines: a foreign library, or a path to libraries."""
    text = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True).stdout
    allowed = OF_TORCH if path.name == "adapter.so" else set()
    foreign = sorted(name for name in needed(path) if not OF_GLIBC.fullmatch(name) and name not in allowed)
    found = [f"needs {name}, which must be linked statically" for name in foreign]
    found += [f"has a {kind}: {value}" for kind, value in re.findall(r"\((R(?:UN)?PATH)\).*\[(.*)\]", text)]
    return found


def versions(path: Path) -> dict[str, tuple[int, ...]]:
    """The highest symbol version of each kind that a binary requires: {"GLIBC": (2, 31)}, for example."""
    text = subprocess.run(["readelf", "-VW", path], capture_output=True, text=True, check=True).stdout
    required = text.partition("Version needs")[2]  # before this heading are the versions that the binary defines
    highest: dict[str, tuple[int, ...]] = {}
    for kind, number in re.findall(r"Name: (\w+)_([\d.]+)", required):
        if kind in DEBIAN_11:
            highest[kind] = max(highest.get(kind, ()), tuple(map(int, number.split("."))))
    return highest


def too_new(path: Path) -> list[str]:
    """The required symbol versions that Debian 11 does not have, such as "GLIBC_2.34"."""
    required = versions(path).items()
    return [f"{kind}_{'.'.join(map(str, number))}" for kind, number in required if number > DEBIAN_11[kind]]
