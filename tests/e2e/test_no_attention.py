"""Attention on the math path (here: dropout inside it): its forward calls are counted, nothing else is made up."""

import pathlib

import pytest
from monitored import EVERYTHING, PYTHON, Run, assert_conserved, run_monitored, unwrapped

STEPS = 12
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
    return run_monitored([PYTHON, "-c", SCRIPT], *EVERYTHING)


def test_the_summary_says_so(run):
    rank = run.rank()
    assert rank["no_attention_seen"] is False
    assert_conserved(rank)
    assert {name: of["calls"] for name, of in rank["attention"].items()} == {"forward": STEPS, "backward": 0}
    assert rank["attention"]["forward"]["operations"] == {"_scaled_dot_product_attention_math": STEPS}
    assert rank["attention"]["forward"]["skipped"]["off"] > 0
    assert rank["attention_coverage"] == {"ratio": None, "source": "none"}
    assert rank["attention_unseen"] == []
    assert rank["worst_layer"] is None
    assert rank["alarms"] == []


def test_the_terminal_says_so(run):
    assert f"{STEPS} forward calls that no fused kernel takes" in unwrapped(run.stderr)
    assert "--math-path on" in run.stderr
    assert "attention not checked" in run.stderr
    assert "healthy" not in run.stderr


def test_all_else_is_followed(run):
    rank = run.rank()
    assert rank["steps"] == rank["step"] == STEPS
    assert rank["loss"]["last"] == pytest.approx(run.told()[0]["loss"], rel=1e-6)
    assert rank["gradient"]["norm"] > 0
