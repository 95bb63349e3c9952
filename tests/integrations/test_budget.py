"""The helper holds itself to --max-slowdown: too dear at steps, it gives up names, norms and weights for good."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integrations" / "torch" / "python"))
from foreshock_torch.budget import OverheadGuard, limit_of  # noqa: E402

pytestmark = pytest.mark.quick

MS = 1_000_000
GIVEN_UP = 16  # FORESHOCK_GIVEN_UP_TENSORS


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (None, 0.01), ("", 0.01), ("1%", 0.01), ("0.5 %", 0.005), ("0.02", 0.02), ("5.%", 0.05), ("0", 0), ("100%", 1),
        ("1", 1), ("101%", 0.01), ("2", 0.01), ("-1%", 0.01), ("1 percent", 0.01), ("nan", 0.01), (" 5%", 0.01),
    ],
)  # fmt: skip
def test_the_limit_is_read_as_the_core_reads_it(text: str | None, limit: float) -> None:
    assert limit_of(text) == pytest.approx(limit, rel=1e-15)


def blown_at(limit: float, steps: Iterable[tuple[float, float]]) -> int | None:
    """The step at which the guard finds too much own time; `steps`: milliseconds of ours and of theirs in each."""
    guard, own, now = OverheadGuard(limit), 0, 10**12
    blown = []
    for number, (ours, theirs) in enumerate(steps, 1):
        own += int(ours * MS)
        now += int((ours + theirs) * MS)
        if guard.finds_excess(own, now):
            blown.append(number)
    assert len(blown) <= 1, "it is told once"
    return blown[0] if blown else None


def mixed(*parts: tuple[int, float, float]) -> Iterator[tuple[float, float]]:
    for count, ours, theirs in parts:
        yield from repeat((ours, theirs), count)


def test_beyond_the_limit_for_two_windows() -> None:
    # Of 10 ms a step, 0.6 ms are 6 % of the rest; 833 steps of it are half a second.
    assert blown_at(0.01, mixed((2000, 0.6, 10))) == 6 + 1000, "of the first windows nothing was lost yet"
    assert blown_at(0.01, mixed((20_000, 0.4, 10))) is None, "four times the limit: a burst may be that dear"
    assert blown_at(0.02, mixed((20_000, 0.6, 10))) is None
    # A long sound training first: then the two windows suffice.
    assert blown_at(0.01, mixed((10_006, 0.06, 10), (1000, 0.6, 10))) == 10_006 + 200
    # Of short steps a window is a second.
    assert blown_at(0.01, mixed((60_000, 0.01, 0.99), (5000, 0.1, 0.9))) is not None


def test_flagrant_at_once() -> None:
    # Half a second besides the dearest step: 0.1 s each, the seventh is the first that is counted.
    assert blown_at(0.01, mixed((50, 100, 100))) == 6 + 6
    assert blown_at(0.10, mixed((50, 100, 100))) is None, "ten times the limit is all of theirs, which it is not beyond"
    assert blown_at(0.0, mixed((50, 100, 10_000))) == 6 + 6, "where nothing is allowed"


@pytest.mark.parametrize("ours", [0.01, 1, 1000])
def test_without_limit_never(ours: float) -> None:
    assert blown_at(1.0, mixed((1000, ours, 1))) is None


def test_what_is_no_habit_is_forgiven() -> None:
    """Set-up, and one dear step in a window; also where both come in the same one as some more."""
    assert blown_at(0.01, mixed((6, 5000, 10), (5000, 0.1, 10))) is None
    now_and_then = [(2000 if n % 100 == 50 else 0.1, 10) for n in range(5000)]
    assert blown_at(0.01, now_and_then) is None
    # Sound windows between: two in a row are asked for.
    other = [(0.6 if n // 100 % 2 else 0.06, 10) for n in range(6 + 20_000)]
    assert blown_at(0.01, [(0, 10)] * 6 + other) is None
    assert blown_at(0.01, mixed((400, 1.2, 10))) is None, "less than half a second in all"


SLOW_HOOKS = """
import json, time, torch
from foreshock_torch import start
spent = []
off = start.disable_torch_function
class Slow:
    def __enter__(self): time.sleep(0.01); self.off = off(); self.off.__enter__()
    def __exit__(self, *why): self.off.__exit__(*why)
start.disable_torch_function = Slow
tell = start.monitor.core.step_end
def told(*given): spent.append(given[4]); tell(*given)
start.monitor.core.step_end = told
weight = torch.nn.Parameter(torch.ones(2)); opt = torch.optim.SGD([weight], lr=1e-3)
for step in range(5):
    weight.square().sum().backward(); opt.step(); opt.zero_grad()
print(json.dumps(spent))
"""


def test_what_is_around_a_call_is_accounted_for(trainer) -> None:
    """Hooks that take 10 ms, before and after each optimizer step: the latter in the next step that is told."""
    spent = trainer(SLOW_HOOKS)
    assert len(spent) == 5
    assert spent[0] >= 10 * MS, "before"
    assert all(each >= 20 * MS for each in spent[1:])


# Parameters that are other ones at every step are named anew at the first ones, which is made slow here.
TRAINING = """
import json, torch
model = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(5))
opt = torch.optim.SGD(model.parameters(), lr=1e-3); losses = []
for step in range(40):
    if {changing}:
        for part in model:
            for name, value in list(part.named_parameters()):
                setattr(part, name, torch.nn.Parameter(value.detach().clone()))
        opt.param_groups[0]["params"] = list(model.parameters())
    loss = sum(part(torch.randn(3, 4)).square().mean() for part in model)
    loss.backward(); opt.step(); opt.zero_grad(); losses.append(loss.item())
told = [losses, [parameter.tolist() for parameter in model.parameters()]]
"""
SLOW = """
import time
from foreshock_torch.modules import Modules
named = Modules.named; times = []
def slow(*given): times.append(1); time.sleep(SECONDS); return named(*given)
Modules.named = slow
note = Modules.note; notes = []
def noted(*given): notes.append(1); note(*given)
Modules.note = noted
_fake.fake_sample(1)
"""


def train(trainer, changing: bool, limit: str, seconds: float) -> tuple[list[dict], int, int]:
    """Events, how often was named, and how often a module was noted. The training is no other without us."""
    code = TRAINING.format(changing=changing)
    slow = SLOW.replace("SECONDS", str(seconds))
    rows, times, notes, told = trainer(
        f"{slow}{code}\nprint(json.dumps([events(), len(times), len(notes), told]))", FORESHOCK_MAX_SLOWDOWN=limit
    )
    seed = "import torch; torch.manual_seed(0); torch.set_num_threads(1)"
    assert told == trainer(f"{seed}{code}\nprint(json.dumps(told))", monitored=False), "not a bit is changed"
    assert not [row for row in rows if row["event"] == "off"]
    assert [row["value"] for row in rows if row["event"] == "loss"] == told[0]
    return rows, times, notes


def test_parameters_that_are_other_ones_at_every_step(trainer) -> None:
    rows, times, notes = train(trainer, True, "1%", 0.51)
    steps = [n for n, row in enumerate(rows) if row["event"] == "step"]
    given_up = [bool(rows[n]["given"] & GIVEN_UP) for n in steps]
    assert len(steps) == 40, "the clock goes on"
    # Half a second each: six are set-up, and the dearest of the others is not counted.
    assert given_up.index(True) in (7, 8)
    assert given_up == sorted(given_up), "for good"
    assert times == given_up.index(True) + 1, "nothing is named any more"
    before, after = rows[: steps[given_up.index(True)]], rows[steps[given_up.index(True)] :]
    assert {"name", "weight_name", "weight", "gradients"} <= {row["event"] for row in before}
    assert {row["event"] for row in after} == {"step", "loss", "names_forgotten"}
    assert sum(row["event"] == "names_forgotten" for row in after) == 1, "they are other tensors' by now"
    assert notes == 6, "five layers and their list, when the model is made"
    assert all(rows[n]["learning_rate"] == 1e-3 for n in steps)


@pytest.mark.parametrize(("changing", "limit"), [(False, "1%"), (True, "100%")])
def test_a_sound_training_and_one_without_limit_give_nothing_up(trainer, changing: bool, limit: str) -> None:
    rows, times, notes = train(trainer, changing, limit, 0.1)
    steps = [row for row in rows if row["event"] == "step"]
    assert len(steps) == 40
    assert not [row for row in steps if row["given"] & GIVEN_UP]
    assert times >= 16 if changing else times <= 3
    assert notes == 6, "five layers and their list, however often they get other parameters"
    assert sum(row["event"] == "gradients" for row in rows) >= 39
    assert any(row["event"] == "names_forgotten" for row in rows) == changing, "other tensors may lie where they were"


def test_all_that_is_ours_at_steps_is_told(trainer) -> None:
    """Also of optimizers that do not tick, of a call that goes on with a step, of modules and of loggers."""
    rows = trainer("""
import sys, time, types
from foreshock_torch import clock, logs, modules, optimizers
def slowed(owner, name, seconds=0.02):
    real, calls = getattr(owner, name), []
    def slow(*given, **more): calls.append(1); time.sleep(seconds); return real(*given, **more)
    setattr(owner, name, slow)
    return calls
writer = types.ModuleType("tensorboardX.writer")
class SummaryWriter:
    def add_scalar(self, tag, scalar_value, global_step=None): pass
writer.SummaryWriter = SummaryWriter; sys.modules[writer.__name__] = writer
one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
first, second = torch.optim.SGD(one.parameters(), lr=.1), torch.optim.SGD(two.parameters(), lr=.1)
def step():
    (one(torch.ones(2)) + two(torch.ones(2))).sum().backward()
    first.step(); second.step(); SummaryWriter().add_scalar("a", 1.)
for _ in range(5): step()
spent = []
def of(owner, name):
    before = getattr(owner, name); events(); calls = slowed(owner, name)
    for _ in range(3): step()
    setattr(owner, name, before)
    spent.append([name, [row["prepare_ns"] for row in events("step")]])
    spent.append(["calls of " + name, len(calls)])
    step()
of(optimizers.OtherOptimizers, "note_step"); of(clock.Monitor, "_report_unseen_attention")
of(clock.SplitStep, "begin"); of(logs.Logs, "_note")
slowed(modules.Modules, "note"); events(); three = torch.nn.Linear(2, 2); step()
spent.append(["note", [row["prepare_ns"] for row in events("step")]])
print(json.dumps(spent))
""")
    told = dict(rows)
    # The second optimizer steps, and the logger logs, after the step was told: it is in the next one's.
    assert all(spent > 20 * MS for name in ("note_step", "_note") for spent in told[name][1:]), told
    assert all(spent > 20 * MS for spent in told["begin"]), told
    assert max(told["_report_unseen_attention"]) > 20 * MS, told
    assert told["calls of _report_unseen_attention"] == 1, "at the tenth tick"
    assert told["note"][0] > 20 * MS, "one module"
