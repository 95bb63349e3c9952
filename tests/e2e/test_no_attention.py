"""Attention on the math path (here: dropout inside it) is no operation to hook: that is said, nothing is made up."""

import pathlib

import pytest
from monitored import EVERYTHING, PYTHON, Run, assert_conserved, run_monitored

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
    assert rank["no_attention_seen"] is True
    assert_conserved(rank)
    assert [of["calls"] for of in rank["attention"].values()] == [0, 0]
    assert rank["worst_layer"] is None
    assert rank["alarms"] == []


def test_the_terminal_says_so(run):
    assert "no attention call was seen" in run.stderr
    assert "dropout" in run.stderr
    assert "no attention was judged" in run.stderr
    assert "no more than its precision explains" not in run.stderr


def test_all_else_is_followed(run):
    rank = run.rank()
    assert rank["steps"] == rank["step"] == STEPS
    assert rank["loss"]["last"] == pytest.approx(run.told()[0]["loss"], rel=1e-6)
    assert rank["gradient"]["norm"] > 0
