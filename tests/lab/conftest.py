"""The built command line, and the sweep over functions as a module."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(ROOT / "lab" / "python")]


@pytest.fixture(scope="session")
def foreshock() -> str:
    build = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release"))
    executable = build / "bin" / "foreshock"
    if not executable.exists():
        pytest.fail(f"{executable} is missing: build it first with ./dev build")
    return str(executable)
