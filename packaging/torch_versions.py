"""The releases of torch that packages bring adapters for, and a virtual environment with each.

One release per minor version is tested (`./dev test-torch`); an adapter fits exactly one commit, so any other patch
release is built on the user's machine. CPU and CUDA wheels of a release share its adapter.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "torch"

RELEASES = ["2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"]


def python_with(release: str) -> Path:
    """The Python of an environment with this torch from a package index (about 5 GB on disk for a CUDA build)."""
    folder = PLACE / release
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    print(f"package: installing torch {release} into {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    packages = [f"torch=={release}", "numpy", "pytest"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-cache-dir", *packages], check=True)
    (folder / "ready").touch()
    return python
