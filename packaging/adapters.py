"""Builds adapters for packages: libraries, each of which connects libforeshock.so with one release of torch.

build_adapter.py builds and tests an adapter once and keeps it in a cache. Packages reuse it until a source changes. For
another processor than this machine's, the functions of build_adapter.py are called with a cross compiler, and the test
runs under qemu.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import elf
import foreign
from torch_versions import ROOT

BUILDER = ROOT / "integrations" / "torch" / "build_adapter.py"
CACHE = ROOT / "build" / "prebuilt"
INCLUDE = ROOT / "libmonitor" / "include"

sys.path.append(str(BUILDER.parent))
import build_adapter  # noqa: E402


class AdapterError(Exception):
    """The text is one line: the release of torch without an adapter, and the reason."""


def build(python: Path, library: Path, cache: Path = CACHE) -> Path:
    """Builds and tests the adapter for the torch of `python`; `library` is libforeshock.so. Returns its directory."""
    command = [python, BUILDER, "--cache", cache, "--library", library, "--include", INCLUDE]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    if answer["state"] not in ("ready", "built"):  # ready: it was in the cache
        raise AdapterError(f"torch {answer['torch']}: {answer['reason']}")
    return Path(answer["path"]).parent


def build_for(machine: str, files: Path, library: Path, cache: Path = CACHE) -> Path:
    """Like build(), for another processor. `files`: the unpacked wheel of a torch for `machine`."""
    torch = build_adapter.find_torch(files / "torch")
    place = cache / machine / f"torch-{torch.version}-{torch.git[:12]}"
    sources = build_adapter.source_digest(INCLUDE)
    if build_adapter.is_current(place, sources, ""):
        return place
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    compiler = f"{machine}-linux-gnu-g++"
    try:
        compile_for(machine, torch, "adapter.cpp", place / "adapter.so", [])
        self_test(machine, torch, library, place)
    except build_adapter.BuildError as error:
        raise AdapterError(f"torch {torch.version} for {machine}: {error.reason}") from error
    build_adapter.write_stamp(place, torch, sources, compiler, machine)
    return place


def compile_for(machine: str, torch: build_adapter.Torch, source: str, target: Path, more: list[str]) -> None:
    command = build_adapter.compile_command(f"{machine}-linux-gnu-g++", torch.home, INCLUDE, source, target, machine)
    build_adapter.run_or_fail([*command, *more], build_adapter.COMPILE_SECONDS, f"compiling {source}")


def self_test(machine: str, torch: build_adapter.Torch, library: Path, place: Path) -> None:
    """Tests the adapter in the folder `place` under qemu, as build_adapter.self_test() does on the user's machine."""
    folder = place.with_name(place.name + ".test")
    folder.mkdir(exist_ok=True)
    of_torch = [torch.home / "lib", torch.home.parent / "torch.libs"]
    root = foreign.make_root(machine)
    of_system = [root / parent / f"{machine}-linux-gnu" for parent in ("lib", "usr/lib")]
    add_stand_ins(machine, torch.home / "lib" / "libtorch_cpu.so", [*of_torch, *of_system], folder)
    program = folder / "self_test"
    compile_for(machine, torch, "self_test.cpp", program, ["-Wl,--allow-shlib-undefined"])
    paths = ":".join(map(str, [*of_torch, folder]))
    # In a namespace without /sys, where torch 2.13 reads of processors of another kind, and crashes.
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    emulator = [*namespace, 'mount -t tmpfs none /sys && exec "$@"', "sh"]
    emulator += [f"qemu-{machine}-static", "-L", str(root)]
    for name, value in (("LD_PRELOAD", library), ("LD_LIBRARY_PATH", paths), ("FORESHOCK", "0")):
        emulator += ["-E", f"{name}={value}"]
    seconds = 10 * build_adapter.TEST_SECONDS  # qemu is slow
    build_adapter.run_or_fail([*emulator, program, place / "adapter.so"], seconds, "the adapter's self-test")
    shutil.rmtree(folder)


def add_stand_ins(machine: str, binary: Path, folders: list[Path], target: Path) -> None:
    """Puts empty libraries into `target` in place of those that `binary` needs and that are in none of `folders`. They
    are CUDA's, of which attention on the CPU calls nothing."""
    for name in elf.needed(binary):
        if not any((folder / name).exists() for folder in folders):
            words = [f"{machine}-linux-gnu-gcc", "-shared", "-x", "c", "/dev/null", f"-Wl,-soname,{name}"]
            subprocess.run([*words, "-o", target / name], check=True)


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
