"""The verdict counts the attention layers that the model has, not those that were seen: four short trainings."""

import re
import sys

import pytest
from forked import forked
from monitored import EVERYTHING, Run, assert_conserved, run_monitored, unwrapped

STEPS = 40
LAYERS = 4
SCRIPT = f"""
import sys
sys.path.insert(0, {str(next(path for path in sys.path if path.endswith("support")))!r})
import torch
from torch.nn import functional
from tiny_gpt import Batches, TinyGpt, loss_of, set_up
set_up()
sdpa, kind = functional.scaled_dot_product_attention, sys.argv[1]
call = 0  # of this forward pass

def weights_of(q, k):
    scores = (q.float() @ k.float().transpose(-2, -1)) / q.shape[-1] ** 0.5
    return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, float("-inf")).softmax(-1)

class WrongQuery(torch.autograd.Function):
    @staticmethod
    def forward(context, q, k, v):
        context.save_for_backward(q, k, v)
        return sdpa(q, k, v, is_causal=True)

    @staticmethod
    def backward(context, grad):
        q, k, v = context.saved_tensors
        p, grad = weights_of(q, k), grad.float()
        grad_p = grad @ v.float().transpose(-2, -1)
        scores = p * (grad_p - (grad_p * p).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
        grads = 1.05 * (scores @ k.float()), scores.transpose(-2, -1) @ q.float(), p.transpose(-2, -1) @ grad
        return tuple(each.to(q.dtype) for each in grads)

def attention(q, k, v, **others):
    global call
    layer, call = call % {LAYERS}, call + 1
    if kind == "by hand" and layer % 2 == 1:
        return (weights_of(q, k).clamp(min=0) @ v.float()).to(q.dtype)  # what clamp() does is not followed
    if kind == "wrong query" and layer == 1:
        return WrongQuery.apply(q, k, v)
    return sdpa(q, k, v, **others)

functional.scaled_dot_product_attention = attention
model, batches = TinyGpt(layers={LAYERS}), Batches()
if kind == "head":
    base, head = model, torch.nn.Linear(32, 64)
    base.head = torch.nn.Identity()
    def model(tokens):
        with torch.no_grad():
            x = base(tokens)
        return head(x)
    model.parameters = head.parameters
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range({STEPS}):
    loss_of(model, batches()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def train(kind: str) -> Run:
    run = run_monitored(forked("-c", SCRIPT, kind), *EVERYTHING)
    assert run.rank()["steps"] == STEPS, run.stderr
    assert_conserved(run.rank())
    return run


def judged(number: int) -> dict[str, int]:
    return dict.fromkeys(("out", "grad_query", "grad_key", "grad_value"), number)


def verdicts(run: Run) -> set[str]:
    """The verdicts of the views: first line of the summary, its JSON, the line of the record."""
    (line,) = run.of("verdict")
    first = re.search(r"^foreshock  .* finished, .*  (\S.*)$", run.stderr, re.MULTILINE)
    assert first is not None, run.stderr
    return {first[1].removeprefix("no fault found, "), line["verdict"], run.summary["verdict"]}


def test_a_model_whose_layers_are_all_checked_is_healthy():
    run = train("plain")
    layers = run.summary["attention_layers"]
    assert layers["gaps"] == [], run.stderr
    assert (layers["source"], layers["layers"], layers["seen"]) == ("model", LAYERS, LAYERS)
    assert layers["judged"] == layers["needed"] == judged(LAYERS)
    assert verdicts(run) == {"healthy"}


def test_a_head_on_a_base_without_gradients_is_not_asked_for_a_backward_pass():
    run = train("head")
    assert verdicts(run) == {"PARTLY CHECKED"}
    assert run.rank()["attention"]["backward"]["calls"] == 0
    assert (
        "calls without a layer: dQ not judged; no backward call reached a hook. Do: nothing if no gradient"
        in unwrapped(run.stderr)
    )


@pytest.mark.parametrize(
    ("kind", "cause", "names", "text"),
    [
        ("by hand", "not_hooked", ["001", "003"], "layers 001, 003: forward not judged; no call reached a hook."),
        ("wrong query", "no_backward_seen", ["001"], "layer 001: dQ not judged; foreshock did not see its backward"),
    ],
)
def test_layers_that_were_not_checked_are_named(kind, cause, names, text):
    run = train(kind)
    gap = run.summary["attention_layers"]["gaps"][0]
    assert (gap["cause"], gap["layers"]) == (cause, names), run.stderr
    assert run.summary["attention_layers"]["layers"] == LAYERS
    assert verdicts(run) == {"PARTLY CHECKED"}
    assert text in unwrapped(run.stderr)
    (verdict,) = run.of("verdict")
    assert verdict["gap"].startswith(text)
    assert "healthy" not in run.stderr
