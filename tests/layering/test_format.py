"""Every file is laid out as the formatters have it, and ruff finds nothing."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAID_OUT_BY = 14  # Debian 12's clang-format; another one breaks some lines elsewhere


def version_of_clang_format() -> int | None:
    if shutil.which("clang-format") is None:
        return None
    text = subprocess.run(["clang-format", "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"version (\d+)", text).group(1))


def test_everything_is_formatted():
    version = version_of_clang_format()
    if version != LAID_OUT_BY:
        pytest.skip(f"clang-format {LAID_OUT_BY} is not here, version {version} would break some lines elsewhere")
    command = [sys.executable, "dev", "format", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("dev: ")]
    assert done.returncode == 0, "\n".join(told)
