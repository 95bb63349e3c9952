"""Every turn of a tensor is accounted for, and what has none is named with its reason."""

from pathlib import Path

import pytest
from forked import forked
from monitored import EVERYTHING, Run, run_monitored, unwrapped
from tiers import keep

TRAINING = str(Path(__file__).with_name("turns_training.py"))


def train(case: str, *more: str) -> tuple[Run, dict]:
    run = run_monitored(forked(TRAINING, case), *EVERYTHING, "--weights", "1", *more)
    assert run.returncode == 0, run.stderr
    weights = run.rank()["weights"]
    assert weights["due"] == weights["snapshots"] + sum(weights["skipped"].values())
    assert weights["snapshots"] == len(run.of("tensor"))
    return run, weights


@pytest.mark.parametrize(
    ("case", "tensors", "unknown"),
    keep(
        [("plain", 6, 0), ("two", 6, 3), ("gan", 12, 0), ("critic", 6, 0), ("overflow", 6, 0)],
        ("two", 6, 3),
        several=True,
    ),
)
def test_every_turn_is_taken_or_counted(case, tensors, unknown):
    run, weights = train(case)
    assert weights["tensors"] == tensors
    assert weights["due"] >= 6 * 6
    assert (weights["skipped"]["unknown"] > 0) == (unknown > 0)
    assert weights["skipped"]["unknown"] % 4 == 0, "of the four vectors"
    assert weights["update_coverage"] == 1
    assert weights["update_mean_abs"] > 0
    assert weights["unfollowed"] == ({"own_pace": 6} if case == "critic" else {})
    assert ("not measured: 6 own pace" in unwrapped(run.stderr)) == (case == "critic")


def test_of_a_tensor_larger_than_the_memory_a_part_is_compared(tmp_path):
    """20 MB of fp32, of which 16 MiB are kept."""
    run, weights = train("large", "--memory", "16MiB")
    lines = [line for line in run.of("tensor") if line["tensor"] == "table"]
    assert lines
    for line in lines:
        assert line["elements"] == 5_000_000
        assert 0.75 < line["update_elements"] / line["elements"] < 16 * 2**20 / 20e6
        assert line["update_mean_abs"] == pytest.approx(
            1e-3, rel=1e-4
        )  # values of about 1 are rounded by 2^-24 at most
    assert 0.75 < weights["update_coverage"] < 1
    assert "of the values (--memory)" in unwrapped(run.stderr)


def test_a_flat_parameter_is_named_as_the_reason():
    run, weights = train("fsdp1")
    assert weights["tensors"] == 0
    assert weights["unfollowed"] == {"flat_parameter": 1}
    assert "not measured: 1 flat parameter" in unwrapped(run.stderr)
