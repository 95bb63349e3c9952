"""Short trainings at default options: each layer is judged in the first steps. An interval that is given is kept."""

import sys

import pytest
from monitored import PYTHON, Run, assert_conserved, run_monitored, unwrapped
from tiers import keep

LAYERS = 2
SCRIPT = f"""
import sys
sys.path.insert(0, {str(next(path for path in sys.path if path.endswith("support")))!r})
import torch
from tiny_gpt import Batches, TinyGpt, fingerprint, loss_of, set_up, tell
set_up()
model, batches, losses = TinyGpt(layers={LAYERS}, width=64), Batches(batch=8, length=128), []
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(int(sys.argv[1])):
    loss = loss_of(model, batches())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
tell(steps=len(losses), fingerprint=fingerprint(losses, model))
"""


def train(steps: int, *options: str) -> Run:
    run = run_monitored([PYTHON, "-c", SCRIPT, str(steps)], *options)
    assert run.told()[0]["steps"] == run.rank()["steps"] == steps, run.stderr
    assert_conserved(run.rank())
    return run


def judged(run: Run) -> dict[tuple[str, str], set[int]]:
    """{(layer, pass): steps with a judged slice} of the record."""
    steps: dict[tuple[str, str], set[int]] = {}
    for line in run.of("sample"):
        steps.setdefault((line["layer"], line["pass"]), set()).add(line["step"])
    return steps


@pytest.mark.parametrize("steps", keep([10, 40], 10))
def test_each_layer_is_judged_in_a_short_training(steps, show_line):
    run = train(steps)
    rank = run.rank()
    assert set(judged(run)) == {(f"{n:03d}", which) for n in range(LAYERS) for which in ("forward", "backward")}
    assert "healthy" in run.stderr, run.stderr
    assert rank["gradient"]["norm"] > 0
    assert 0 < rank["first_look_seconds"] <= 0.5
    assert f"first look {rank['first_look_seconds']:.2g} s of 0.5 s granted" in unwrapped(run.stderr)
    show_line("first look", f"{steps} steps: {rank['first_look_seconds']:.3f} s, then {rank['slowdown_ratio']:.2%}")


def test_an_interval_given_without_a_limit_is_kept():
    run = train(20, "--every", "1")
    # Nothing is sampled before the first step has ended.
    assert sum(line["sampled"] for line in run.of("step")) == 19
    assert run.rank()["attention"]["forward"]["skipped"]["budget"] == 0
    assert all(steps == set(range(2, 21)) for steps in judged(run).values()), judged(run)
    assert "no limit given" in run.stderr


INFERENCE = """
import torch
with torch.no_grad():
    for _ in range(40):
        torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 2, 4, 16, 8))
"""


def test_attention_calls_of_inference_are_not_denied():
    run = run_monitored([PYTHON, "-c", INFERENCE])
    assert run.returncode == 0, run.stderr
    said = unwrapped(run.stderr)
    assert "no optimizer step and no attention call that needs gradients (inference is not followed)" in said


def test_a_training_of_one_step_says_why_nothing_was_sampled():
    run = train(1)
    said = unwrapped(run.stderr)
    assert "not sampled the training ended after 1 step, and sampling begins after the first" in said
    assert "attention not checked" in said
