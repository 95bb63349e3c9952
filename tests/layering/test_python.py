"""What runs in a training runs under the oldest Python that we promise: torch 2.8 still had a wheel for 3.9.

Ruff (pyproject.toml) looks at a version's grammar, not at its library: zip(strict=True), of 3.10, once switched
the helper off on every older Python.
"""

import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parents[2]
OF_THE_TRAINING = ["integrations/torch/python", "integrations/torch/*.py", "lab/python", "packaging/newcomer*.py"]


def promised() -> str:
    return re.search(r'"Requires-Python: >=([\d.]+)"', (ROOT / "packaging/package.py").read_text()).group(1)


def beyond(version: str, *files: pathlib.Path) -> str:
    """What in the files Python `version` does not know, in vermin's words; empty when there is nothing."""
    command = [sys.executable, "-c", "import vermin; vermin.main()"]
    command += [f"-t={version}-", "--violations", "--no-tips", "--no-parse-comments"]
    # It takes torch.long for the member of a module of Python 2.
    run = subprocess.run([*command, "--exclude", "long", *map(str, files)], capture_output=True, text=True)
    return run.stdout + run.stderr if run.returncode else ""


def test_what_runs_in_the_training_knows_the_promised_python():
    names = subprocess.run(
        ["git", "ls-files", "-z", "--", *OF_THE_TRAINING], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    files = [ROOT / name for name in names if name.endswith(".py") and (ROOT / name).exists()]
    assert len(files) > 20
    assert beyond(promised(), *files) == ""


@pytest.mark.parametrize(
    "newer",
    [
        "list(zip([1], [2], strict=True))",
        "import datetime; datetime.UTC",
        "match 1:\n    case 1:\n        pass",
        "import itertools; itertools.pairwise([])",
        "import tomllib",
    ],
)
def test_a_newer_python_would_be_found(tmp_path, newer):
    (tmp_path / "newer.py").write_text(newer + "\n")
    assert "3.1" in beyond(promised(), tmp_path / "newer.py")
