"""bench/yardsticks at toy size: resumable, its figures those of foreshock compare."""

import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bench" / "yardsticks.py"
TOY = ("--size", "toy", "--steps", "20", "--every", "5", "--replicates", "2")


def experiment(out: pathlib.Path, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(PROGRAM), *TOY, "--out", str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=os.environ)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, subprocess.CompletedProcess]:
    out = tmp_path_factory.mktemp("yardsticks")
    return out, experiment(out)


@pytest.fixture(scope="module")
def slopes():
    specification = importlib.util.spec_from_file_location("slopes", ROOT / "bench" / "yardsticks" / "slopes.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_twins_differ_only_as_planned(done):
    out, process = done
    assert process.returncode == 0, process.stderr
    whole = json.loads((out / "yardsticks.json").read_text())
    assert whole["summary"]["repeated_to_the_bit"] is True
    for replicate in whole["replicates"]:
        for name, curve in replicate["pairs"].items():
            assert [point["step"] for point in curve] == [0, 5, 10, 15, 20]
            same_start = name != "seed"
            assert (curve[0]["max_abs"] == 0) == same_start
            assert (curve[-1]["mean_abs"] > 0) == (name != "again")
            # W1 <= mean |d|; of fp32, W1 itself is an estimate between bounds.
            assert all(point["w1_low"] <= point["mean_abs"] * (1 + 1e-9) for point in curve)
    first, second = (replicate["losses"]["base"] for replicate in whole["replicates"])
    assert first != second


def test_weights_are_deleted_after_their_comparison(done):
    out, _ = done
    assert sorted(path.name for path in out.iterdir()) == [
        "plan.json",
        "replicate-0.json",
        "replicate-1.json",
        "yardsticks.json",
    ]


def test_continues_with_the_same_results(done):
    out, _ = done
    before = (out / "replicate-1.json").read_bytes()
    (out / "replicate-1.json").unlink()
    again = experiment(out)
    assert again.returncode == 0, again.stderr
    assert "replicate 1 of 2" not in again.stderr
    assert "replicate 2 of 2" in again.stderr
    assert (out / "replicate-1.json").read_bytes() == before


def test_refuses_the_folder_of_another_experiment(done):
    out, _ = done
    other = experiment(out, "--steps", "10")
    assert other.returncode == 1
    assert other.stderr.count("\n") == 1
    assert "another --out" in other.stderr


def test_intervals_and_verdicts(slopes):
    # By hand: mean 2, standard deviation 1, t of 2 degrees of freedom 4.303.
    found = slopes.interval([1, 2, 3])
    assert found.mean == 2
    assert math.isclose(found.high - 2, 4.303 / math.sqrt(3), rel_tol=1e-12)
    assert math.isnan(slopes.interval([5]).low)
    ratio = slopes.ratio([2, 8], [1, 1])
    assert math.isclose(ratio.mean, 4, rel_tol=1e-12)
    assert math.isnan(slopes.ratio([1, -1], [1, 1]).mean)
    assert math.isclose(slopes.slope([0, 10, 20], [1, 2, 3]), 0.1, rel_tol=1e-9)
    assert slopes.verdict(slopes.Interval(3, 2.5, 4)) == "confirmed"
    assert slopes.verdict(slopes.Interval(9, 6, 12)) == "denied"
    assert slopes.verdict(slopes.Interval(1, 0.5, 1.5)) == "denied"
    assert slopes.verdict(slopes.Interval(3, 1, 9)) == "undecided"
    assert slopes.verdict(slopes.Interval(3, math.nan, math.nan)) == "undecided"
