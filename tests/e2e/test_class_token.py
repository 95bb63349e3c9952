"""A classifier whose loss reaches only its first token: in the last layer one row of dQ a sample is not 0."""

import sys

from forked import forked
from monitored import EVERYTHING, Run, run_monitored

STEPS, LAYERS = 160, ("000", "001")
SCRIPT = f"""
import sys
sys.path.insert(0, {str(next(path for path in sys.path if path.endswith("support")))!r})
import torch
from agent_view import wait_until_slots_are_free
from tiny_gpt import set_up
from torch import nn
from torch.nn import functional
from wrong_backward import QUERY, WrongBackward

LAST = {len(LAYERS) - 1}

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x):
        y = self.norm(x)
        split = [each(y).unflatten(-1, (2, 16)).transpose(1, 2) for each in (self.query, self.key, self.value)]
        return x + self.out(functional.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2))

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.token = nn.Linear(12, 32), nn.Parameter(torch.randn(1, 1, 32))
        self.blocks = nn.ModuleList(Layer() for _ in range({len(LAYERS)}))
        self.head = nn.Linear(32, 10)

    def forward(self, patches):
        x = torch.cat([self.token.expand(len(patches), -1, -1), self.embedding(patches)], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])

set_up()
kernel = WrongBackward({len(LAYERS)}, {{LAST: QUERY}} if sys.argv[1] == "wrong" else {{}})
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range({STEPS}):
    functional.cross_entropy(model(torch.randn(8, 32, 12)), torch.randint(10, (8,))).backward()
    optimizer.step()
    optimizer.zero_grad()
    wait_until_slots_are_free()
"""


def train(kind: str) -> Run:
    return run_monitored(forked("-c", SCRIPT, kind), *EVERYTHING)


def lines_of_dq(run: Run) -> list[dict]:
    return [line for line in run.of("sample") if (line["layer"], line["tensor"]) == (LAYERS[-1], "grad_query")]


def test_a_sound_training_is_judged_whole():
    run = train("sound")
    lines = lines_of_dq(run)
    # One slice in four has the first position; of the others, one in two: the first part has two positions.
    compared = [line for line in lines if line["rows_not_comparable"] < line["rows"]]
    assert len(lines) / 4 < len(compared) < len(lines)
    assert all(line["rows"] - line["rows_not_comparable"] == 1 for line in compared)
    assert 0 < sum(line["fused_ratio"] is not None for line in compared) < len(compared) / 4
    assert run.summary["verdict"] == "healthy", run.stderr
    assert run.summary["attention_layers"]["judged"] == dict.fromkeys(
        ("out", "grad_query", "grad_key", "grad_value"), 2
    )


def test_an_error_of_dq_is_named():
    run = train("wrong")
    assert {(alarm["layer"], alarm["tensor"]) for alarm in run.rank()["alarms"]} == {(LAYERS[-1], "grad_query")}
    assert run.summary["verdict"] == "ATTENTION FAULT", run.stderr
