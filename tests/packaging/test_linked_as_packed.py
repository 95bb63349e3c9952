"""The command line linked as it is packed, static but for glibc 2.31; test_packages.py tries whole packages."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import monitored
import pytest

pytestmark = pytest.mark.long
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))

import dependencies  # noqa: E402
import elf  # noqa: E402
import package  # noqa: E402
import relink  # noqa: E402

TRAINING = """
import torch
layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
optimizer = torch.optim.AdamW(layer.parameters())
for _ in range(10):
    loss = layer(torch.randn(2, 16, 32)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An installation whose command line is linked as a package's; the rest is that of the build."""
    prefix = tmp_path_factory.mktemp("prefix")
    for folder in ("lib", "share", "include"):
        (prefix / folder).symlink_to(monitored.BUILD / folder)
    (prefix / "bin").mkdir()
    relink.link(monitored.BUILD, prefix / "bin" / "foreshock")
    return prefix


def test_only_glibc_2_31_is_needed_and_no_library_path_is_set(prefix):
    program = prefix / "bin" / "foreshock"
    assert elf.problems(program) == []
    assert elf.too_new(program) == []


def test_a_runpath_is_reported(prefix, tmp_path):
    """The static binary of an earlier version crashed at its start because of one."""
    program = tmp_path / "foreshock"
    words = relink.link(monitored.BUILD, program)
    package.run(*words, "-Wl,-rpath,$ORIGIN/../lib", cwd=monitored.BUILD)
    assert elf.problems(program) == ["has a RUNPATH: $ORIGIN/../lib"]


def test_it_starts_on_glibc_2_31(prefix):
    libraries = dependencies.old_glibc(package.DEPENDENCIES) / "lib" / f"{os.uname().machine}-linux-gnu"
    (loader,) = libraries.glob("ld-2.31.so")
    words = [loader, "--library-path", libraries, prefix / "bin" / "foreshock", "--version"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.startswith("foreshock ")


def test_version_and_doctor(prefix):
    program = prefix / "bin" / "foreshock"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.split()[0] == "foreshock"
    doctor = subprocess.run(
        [program, "doctor", "--python", monitored.PYTHON],
        env=monitored.clean_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr


def test_ten_steps_of_a_training_are_seen(prefix, base, tmp_path):
    summary = tmp_path / "summary.json"
    command = [prefix / "bin" / "foreshock", "run", "--port", "0", "--every", "1", "--max-slowdown", "100%"]
    command += ["--summary", summary, "--", monitored.PYTHON, "-c", TRAINING]
    done = subprocess.run(
        command, env=monitored.clean_environment(FORESHOCK_DIR=str(base)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (rank,) = json.loads(summary.read_text())["ranks"]
    assert rank["steps"] == 10, rank
    forward = rank["attention"]["forward"]
    assert forward["calls"] == 10
    assert 0 < forward["judged"] <= 10
