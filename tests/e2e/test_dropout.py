"""Attention with dropout takes PyTorch's unfused path on the CPU: it is judged, or only counted on demand."""

import pathlib

import pytest
from forked import forked
from monitored import EVERYTHING, Run, assert_conserved, run_monitored, run_plain, unwrapped

STEPS = 12
MATH = "_scaled_dot_product_attention_math"
SCRIPT = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).resolve().parents[1] / "support")!r})
import torch
from tiny_gpt import Batches, TinyGpt, loss_of, set_up, tell
set_up()
model, batches = TinyGpt(layers=1, dropout=0.1), Batches()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range({STEPS}):
    loss = loss_of(model, batches())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
tell(loss=loss.item())
"""


@pytest.fixture(scope="module")
def run() -> Run:
    return run_monitored(forked("-c", SCRIPT), *EVERYTHING)


@pytest.fixture(scope="module")
def counted() -> Run:
    return run_monitored(forked("-c", SCRIPT), *EVERYTHING, "--math-path", "off")


def test_the_bits_are_those_of_a_plain_run(run, counted):
    plain = run_plain(forked("-c", SCRIPT))
    assert plain.told() == run.told() == counted.told()


def test_both_passes_are_judged(run):
    rank = run.rank()
    assert_conserved(rank)
    forward, backward = (rank["attention"][name] for name in ("forward", "backward"))
    assert (forward["calls"], backward["calls"]) == (STEPS, STEPS - 1)  # the first step is not sampled
    assert forward["judged"] == backward["judged"] == STEPS - 1
    assert forward["operations"] == {MATH: STEPS}
    assert backward["operations"] == {f"{MATH}_backward": STEPS - 1}
    tensors = {line["tensor"] for line in run.of("sample")}
    assert tensors >= {"out", "grad_query", "grad_key", "grad_value"}
    assert rank["alarms"] == []
    assert "healthy" in run.stderr


def test_switched_off_it_is_only_counted(counted):
    rank = counted.rank()
    assert rank["no_attention_seen"] is False
    assert_conserved(rank)
    assert {name: of["calls"] for name, of in rank["attention"].items()} == {"forward": STEPS, "backward": 0}
    assert rank["attention"]["forward"]["operations"] == {MATH: STEPS}
    assert rank["attention"]["forward"]["skipped"]["off"] > 0
    assert rank["attention_coverage"] == {"ratio": None, "source": "none"}
    assert rank["attention_unseen"] == []
    assert rank["worst_layer"] is None
    assert rank["alarms"] == []
    assert f"{STEPS} forward calls that no fused kernel takes" in unwrapped(counted.stderr)
    assert "attention not checked" in counted.stderr
    assert "healthy" not in counted.stderr


def test_all_else_is_followed(counted):
    rank = counted.rank()
    assert rank["steps"] == rank["step"] == STEPS
    assert rank["loss"]["last"] == pytest.approx(counted.told()[0]["loss"], rel=1e-6)
    assert rank["gradient"]["norm"] > 0
