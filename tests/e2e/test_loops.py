"""Wrong loops, with other models and optimizers than in test_conditions.py: each is named, and its twin is not."""

import pathlib

import pytest
from forked import forked
from monitored import Run, run_monitored, unwrapped
from tiers import keep

SCRIPT = str(pathlib.Path(__file__).with_name("loop_training.py"))
FAST = ("embedding_under_no_grad", "no_gradient", "1 parameter got no gradient since step 2: table.weight")
CASES = [
    ("detached", "no_gradient", "6 parameters got no gradient since step"),
    ("factor_of_0", "zero_gradient", "the gradient of 2 parameters is exactly 0 since step"),
    ("clipped_to_0", "nothing_trained", "none of 10 tensors has changed"),
    ("new_optimizer", "optimizer_began_again", "after step 150 an optimizer counts its steps from 1"),
    ("schedule_not_restored", "rate_not_restored", "the learning rate of a new process is 0.01 at step 151"),
    ("rate_jumps", "rate_jump", "the learning rate jumps at step 121 to 0.003, its largest value before was 0.0001"),
    ("one_not_zeroed", "gradient_piled_up", "has the gradients of earlier steps in it"),
    ("not_divided", "loss_factor", "the gradient is that of 4 times the mean cross-entropy of the step"),
    ("every_second_overflows", "steps_skipped", "the gradient scaler skips"),
    ("one_bad_batch", "lone_loss", "one loss stands out alone at step 201"),
    ("norms_decay", "gains_decay", "weight decay shrinks 1 vector that began near 1"),
    ("epsilon_of_0", "weights_nonfinite", "weights hold NaN or Inf since step"),
    ("keys_unseen", "unseen_keys", "causal attention hides the last 8 of 24 keys from all queries"),
    ("untied", "optimizer_began_again tied_apart", "head.weight, which has the shape of embedding.weight, is trained"),
    ("ranks_read_the_same", "same_losses", "ranks 0, 1 have the same loss, bit for bit, since step"),
    ("rate_of_another_model", "early_rise", "the loss is above its first values"),
    ("features_grow", "gradient_rise", "the gradient norm is high since step"),
    FAST,
    ("optimizer_of_a_copy", "nothing_trained", "nothing is trained since step"),
    ("one_not_stepped", "gradient_unused", "6 parameters have gradients and do not change since step"),
    ("cleared_before_step", "nothing_trained", "no look found a gradient other than 0"),
    ("decayed_each_step", "rate_zero", "the learning rate of the first parameter group is below 1e-12 since step"),
    ("dead_units", "zero_gradient", "the gradient of 3 parameters is exactly 0 since step 2"),
    ("clipped_far_below", "clipped_away", "clipping leaves little of the gradient since step"),
    ("shards_read_the_same", "same_losses", "ranks 0, 1 have the same loss, bit for bit, since step 1"),
    (
        "rank_without_labels",
        "rank_apart",
        "the loss of rank 1 is apart from those of the other ranks since step 101: 0",
    ),
    ("steps_stop", "steps_stopped", "no step has ended since step 100, and backward passes go on"),
]


def train(kind: str, which: str, folder: pathlib.Path) -> Run:
    run = run_monitored(forked(SCRIPT, kind, which, str(folder)), "--max-slowdown", "50%")
    assert run.returncode == 0, run.stderr
    return run


@pytest.mark.parametrize(("kind", "condition", "text"), keep(CASES, FAST, several=True))
def test_a_wrong_loop_is_named_and_its_twin_is_not(kind, condition, text, tmp_path):
    run = train(kind, "bad", tmp_path)
    assert [each["condition"] for each in run.summary["conditions"]] == condition.split()
    assert text in unwrapped(run.summary["text"])
    twin = train(kind, "good", tmp_path)
    assert [each["text"] for each in twin.summary["conditions"]] == []
    assert twin.summary["findings"] == []
