"""The releases of torch for which the packages of foreshock can contain adapters, and a virtual environment with each.

An adapter is a library that connects libforeshock.so with one commit of torch. The CPU and CUDA wheels of a release
have the same commit, so they need one adapter. Other adapters are built on the user's machine. `./dev test-torch` tests
RELEASES, one per minor version. For another processor than this machine's, a wheel is only unpacked.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "build" / "torch"

RELEASES = ["2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"]


def python_with(release: str) -> Path:
    """The Python of a virtual environment with this torch, which is made if missing; with CUDA it takes 5 GB."""
    folder = ENVIRONMENTS / release
    python = folder / "bin" / "python"
    if (folder / "ready").exists():  # created last, so that an interrupted installation is repeated
        return python
    print(f"package: installing torch {release} into {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    packages = [f"torch=={release}", "numpy", "pytest"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-cache-dir", *packages], check=True)
    (folder / "ready").touch()
    return python


def unpacked(release: str, machine: str) -> Path:
    """The folder with the files of this torch's wheel for another processor, `machine`, downloaded if missing. Of a
    wheel with CUDA, the libraries for devices are left out: no adapter is linked with them."""
    folder = ENVIRONMENTS / f"{release}-{machine}"
    if (folder / "ready").exists():
        return folder
    print(f"package: downloading torch {release} for {machine}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    downloads = folder / "download"
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps", "--only-binary=:all:"]
    words += [f"--platform=manylinux{policy}_{machine}" for policy in ("2014", "_2_17", "_2_28")]
    subprocess.run([*words, "--dest", downloads, f"torch=={release}"], check=True)
    (wheel,) = downloads.glob("torch-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        left_out = ("torch/lib/libtorch_cuda", "torch/lib/libtorch_nvshmem", "torch/bin/", "torch/test/")
        archive.extractall(folder, [name for name in archive.namelist() if not name.startswith(left_out)])
    shutil.rmtree(downloads)
    (folder / "ready").touch()
    return folder
