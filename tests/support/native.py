"""Builds the C and C++ trainers of integrations/cxx, as a user of each would."""

import hashlib
import importlib.util
import os
import pathlib
import shutil
import subprocess

import monitored

CXX = monitored.ROOT / "integrations" / "cxx"
INCLUDE = monitored.ROOT / "libmonitor" / "include"
C_FLAGS = ["-std=c99", "-pedantic", "-O1", "-Wall", "-Wextra", "-Werror"]
CXX_FLAGS = ["-std=c++20", "-O1", "-DNDEBUG", "-Wall", "-Wextra", "-Werror"]
LINKED = ["-Wl,--no-as-needed", str(monitored.LIBRARY), f"-Wl,-rpath,{monitored.LIBRARY.parent}"]


def c_compiler() -> str:
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or "clang"


def cxx_compiler() -> str:
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "clang++"


def libtorch() -> pathlib.Path:
    """The LibTorch in the wheel of this Python; torch is not imported."""
    return pathlib.Path(importlib.util.find_spec("torch").origin).parent


def build_c_trainer(folder: pathlib.Path, *more: str) -> pathlib.Path:
    target = folder / "c_trainer"
    source = str(CXX / "c_trainer.c")
    subprocess.run([c_compiler(), *C_FLAGS, f"-I{INCLUDE}", source, *more, "-o", str(target), "-lm"], check=True)
    return target


def libtorch_object() -> pathlib.Path:
    """libtorch_trainer.cpp compiled; kept beside the adapters, since torch's headers take half a minute."""
    home = libtorch()
    source = CXX / "libtorch_trainer.cpp"
    includes = [f"-I{INCLUDE}"]
    for path in (home / "include", home / "include" / "torch" / "csrc" / "api" / "include"):
        includes += ["-isystem", str(path)]
    parts = [source, *sorted((INCLUDE / "foreshock").glob("*.h")), home / "version.py"]
    digest = hashlib.sha256(" ".join([cxx_compiler(), *CXX_FLAGS]).encode())
    for part in parts:
        digest.update(part.read_bytes())
    monitored.ADAPTER_CACHE.mkdir(parents=True, exist_ok=True)
    target = monitored.ADAPTER_CACHE / f"libtorch_trainer-{digest.hexdigest()[:16]}.o"
    if not target.exists():
        unfinished = target.with_suffix(f".{os.getpid()}")
        subprocess.run([cxx_compiler(), *CXX_FLAGS, *includes, "-c", str(source), "-o", str(unfinished)], check=True)
        unfinished.rename(target)
    return target


def link_libtorch_trainer(folder: pathlib.Path, *more: str) -> pathlib.Path:
    """`more` comes before LibTorch, as whoever links the monitor has to put it."""
    target = folder / "libtorch_trainer"
    libraries = libtorch() / "lib"
    torch = [f"-L{libraries}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}"]
    subprocess.run([cxx_compiler(), str(libtorch_object()), *more, *torch, "-o", str(target)], check=True)
    return target
