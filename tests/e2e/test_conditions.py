"""Faults of a training's loop, and a sound loop: what the summary and the record say."""

import pathlib
import re

import pytest
from forked import forked
from monitored import Run, run_monitored, run_plain, unwrapped

SCRIPT = str(pathlib.Path(__file__).with_name("condition_training.py"))


def train(kind: str, *arguments: str) -> Run:
    run = run_monitored(forked(SCRIPT, kind, *arguments), "--max-slowdown", "50%")
    run.told()
    assert run.summary is not None
    return run


def names(run: Run) -> list[str]:
    return [each["condition"] for each in run.summary["conditions"]]


def headline(run: Run) -> str:
    return unwrapped(run.summary["text"].partition("attention ")[0])


def test_a_sound_loop_has_no_condition():
    run = train("sound")
    assert names(run) == []
    assert "worth a look" not in run.stderr
    assert run.rank()["skipped_steps"] == 2
    assert run.told() == run_plain(forked(SCRIPT, "sound")).told()


def test_no_step_is_taken_while_each_gradient_overflows():
    run = train("overflows")
    assert names(run) == ["no_step_taken"]
    assert "NO STEP IS TAKEN" in headline(run)
    assert "no optimizer step is taken since step 41: the gradient scaler has skipped 60 in a row" in headline(run)
    assert run.rank()["skipped_steps"] == 60
    (event,) = [line for line in run.of("event") if line["event"] == "no_step_taken"]
    assert event["step"] == 41


def test_parameters_without_a_gradient_are_one_sentence():
    run = train("no_gradient")
    assert names(run) == ["no_gradient"]
    assert "1 thing worth a look" in headline(run)
    assert "2 parameters got no gradient since step" in headline(run)
    assert "blocks.*.norm1.*.gain (2)" in headline(run)


def test_a_parameter_in_no_optimizer_and_a_factor_of_the_loss_are_named():
    run = train("left_out")
    assert sorted(names(run)) == ["gradient_unused", "loss_factor", "no_gradient"]  # the last one: the old head
    assert "3 things worth a look" in headline(run)
    assert re.search(r"1 parameter has gradients and does not change since step \d+: head.weight", headline(run))
    assert "the gradient is that of 0.25 times the mean cross-entropy of the step" in headline(run)


def test_nothing_is_trained_with_a_rate_of_zero():
    run = train("rate_of_zero")
    assert names(run) == ["nothing_trained", "rate_zero"]
    assert "NOTHING IS TRAINED" in headline(run)
    assert "the learning rate of the first parameter group is 0" in headline(run)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "condition", "text"),
    [
        ("rate_comes_back", "rate_comes_back", "the learning rate was at its end at step 76"),
        ("small_updates", "weights_stuck", "of the 16-bit weights did not change"),
        ("one_bad_batch", "lone_loss", "one loss stands out alone at step 280"),
        ("gradients_underflow", "zero_norm", "the gradient norm is exactly 0 since step 101, and the loss is not"),
        ("no_label_counts", "zero_loss", "loss and gradient are exactly 0 since step 101"),
        ("rate_jumps", "rate_jump", "the learning rate jumps at step 120 to 0.3, its largest value before was 0.01"),
        ("clipped_while_scaled", "clipped_away", "clipping leaves little of the gradient since step"),
    ],
)
def test_other_conditions_are_worth_a_look(kind, condition, text):
    run = train(kind)
    assert names(run) == [condition]
    assert "1 thing worth a look" in headline(run)
    assert text in headline(run)


@pytest.mark.long
def test_an_optimizer_that_began_again_is_named(tmp_path):
    run = train("lost_state", str(tmp_path / "weights.pt"))
    assert names(run) == ["optimizer_began_again"]
    assert "the optimizer's state began again" in headline(run)


@pytest.mark.long
def test_ranks_with_the_same_batches_are_named(tmp_path):
    same = train("ranks", str(tmp_path / "same"), "3", "3")
    assert names(same) == ["same_losses"]
    assert "ranks 0, 1 have the same loss, bit for bit, since step 1" in headline(same)
    assert names(train("ranks", str(tmp_path / "own"), "3", "4")) == []


@pytest.mark.long
def test_a_rank_with_shuffled_labels_is_named(tmp_path):
    run = train("shuffled_labels", str(tmp_path / "bad"), "1")
    assert names(run) == ["rank_apart"]
    assert "the loss of rank 1 is apart from those of the other ranks since step" in headline(run)
    assert names(train("shuffled_labels", str(tmp_path / "sound"))) == []
