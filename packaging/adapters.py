"""Builds adapters for packages: libraries, each of which connects libforeshock.so with one release of torch.

build_adapter.py builds and tests an adapter once and keeps it in a cache. Packages reuse it until a source changes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import elf
from torch_versions import ROOT

BUILDER = ROOT / "integrations" / "torch" / "build_adapter.py"
CACHE = ROOT / "build" / "prebuilt"
INCLUDE = ROOT / "libmonitor" / "include"


class AdapterError(Exception):
    """The text is one line: the release of torch without an adapter, and the reason."""


def build(python: Path, library: Path, cache: Path = CACHE) -> Path:
    """Builds and tests the adapter for the torch of `python`; `library` is libforeshock.so. Returns its directory."""
    command = [python, BUILDER, "--cache", cache, "--library", library, "--include", INCLUDE]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    if answer["state"] not in ("ready", "built"):  # ready: it was in the cache
        raise AdapterError(f"torch {answer['torch']}: {answer['reason']}")
    return Path(answer["path"]).parent


def copy_into(built: Path, folder: Path) -> Path:
    """Copies an adapter into a new folder below `folder`. The new folder, which is returned, has the name that
    build_adapter.py searches for on the user's machine."""
    stamp = json.loads((built / "stamp.json").read_text())
    # built.name is torch-VERSION-COMMIT; VERSION may end in a local part such as +cu128, which is cut off below.
    version, _, commit = built.name.removeprefix("torch-").rpartition("-")
    if newer := elf.too_new(built / "adapter.so"):
        raise AdapterError(f"torch {version}: the adapter needs {' '.join(newer)}, which Debian 11 lacks")
    target = folder / f"torch-{version.partition('+')[0]}-{commit}-abi{stamp['abi']}"
    target.mkdir(parents=True)
    shutil.copy(built / "adapter.so", target)
    shutil.copy(built / "stamp.json", target)
    return target
