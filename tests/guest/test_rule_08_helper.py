"""Rule 8: the Python in the trainer is held to the limit too, not only what is sampled."""

from pathlib import Path

import pytest
from monitored import PYTHON, Run, assert_conserved, run_monitored, run_plain

TRAINING = str(Path(__file__).with_name("dear_helper_training.py"))
STEPS = 120


def train(case: str, seconds: float, limit: str) -> tuple[Run, dict]:
    """Under the monitor, its bits compared with those of the same training alone."""
    command = [PYTHON, TRAINING, case, str(seconds)]
    run = run_monitored(command, "--max-slowdown", limit, "--every", "8")
    assert run.told() == run_plain(command).told()
    rank = run.rank()
    assert rank["steps"] == STEPS
    assert_conserved(rank)
    weights = rank["weights"]
    assert weights["due"] == weights["snapshots"] + sum(weights["skipped"].values())
    return run, rank


def test_a_helper_that_is_dear_gives_up_what_makes_it_so():
    """Parameters that are other ones at every step, and half a second to name them."""
    run, rank = train("churn", 0.51, "10%")
    since = rank["tensors_given_up_step"]
    # Six steps are set-up, and the dearest after them is not counted. Later, if the training itself was stopped for
    # seconds: the time of the others must be more than all of its own in the window.
    assert 8 <= since <= 20
    assert "names, gradient norms and weights from step" in " ".join(run.stderr.split())
    after = [line for line in run.of("step") if line["step"] > since]
    assert len(after) == STEPS - since
    ours, all_of_it = (sum(line[field] for line in after) for field in ("overhead_seconds", "duration_seconds"))
    # As of the budget (test_rule_08_budget.py): the dearest may stand above it at the end.
    dearest = max(line["overhead_seconds"] for line in after)
    assert ours - dearest <= 0.1 * (all_of_it - ours), (ours, all_of_it)
    assert all(line["loss"] is not None for line in after)
    assert all(line["gradient_norm"] is None for line in after)
    before = [line for line in run.of("step") if line["step"] < since]
    assert any(line["gradient_norm"] is not None for line in before)
    # Whose turn it would have been is still counted: each tensor has one in 64 steps, and there are 106 of them.
    assert STEPS - since >= 64
    assert rank["weights"]["due"] >= rank["weights"]["tensors"]


@pytest.mark.long
def test_a_dear_set_up_alone_gives_nothing_up():
    _, rank = train("same", 0.4, "1%")
    assert rank["tensors_given_up_step"] is None


@pytest.mark.long
def test_without_a_limit_nothing_is_given_up():
    _, rank = train("churn", 0.1, "100%")
    assert rank["tensors_given_up_step"] is None
    assert rank["gradient"]["norm"] is not None
