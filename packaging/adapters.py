"""Prebuilt adapters: libraries that connect libforeshock.so with one release of torch. Each adapter is built and tested
once; packages reuse it until a source changes."""

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
    """Builds and tests the adapter for the torch of `python` with libforeshock.so, `library`. Returns its directory."""
    command = [python, BUILDER, "--cache", cache, "--library", library, "--include", INCLUDE]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    if answer["state"] not in ("ready", "built"):
        raise AdapterError(f"torch {answer['torch']}: {answer['reason']}")
    return Path(answer["path"]).parent


def ship(built: Path, folder: Path) -> Path:
    """Copies an adapter into `folder` under the name by which build_adapter.py finds it on the user's machine."""
    stamp = json.loads((built / "stamp.json").read_text())
    version, _, git = built.name.removeprefix("torch-").rpartition("-")  # torch-VERSION-COMMIT
    if newer := elf.too_new(built / "adapter.so"):
        raise AdapterError(f"torch {version}: the adapter needs {' '.join(newer)}, which Debian 11 lacks")
    place = folder / f"torch-{version.partition('+')[0]}-{git}-abi{stamp['abi']}"
    place.mkdir(parents=True)
    shutil.copy(built / "adapter.so", place)
    shutil.copy(built / "stamp.json", place)
    return place
