"""Fixtures of the process tests: the built command line and a base directory of its own for each test."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def foreshock() -> str:
    build = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")).resolve()
    executable = build / "bin" / "foreshock"
    if not executable.exists():
        pytest.fail(f"{executable} is missing: build it first with ./dev build")
    return str(executable)


@pytest.fixture
def environment(base, tmp_path):
    """The environment of a run that shares nothing with other runs on the machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORESHOCK")}
    for name in ("LD_PRELOAD", "PYTHONPATH", "WANDB_RUN_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"):
        kept.pop(name, None)
    return kept | {
        "FORESHOCK_DIR": str(base),
        "FORESHOCK_CACHE": str(tmp_path / "cache"),
        "FORESHOCK_PORT": "0",
        "FORESHOCK_RECORD": "off",
        # No interpreter with torch is near, so nothing is built for commands that are no training.
        "PATH": "/usr/bin:/bin",
    }
