"""Optimizers that step copies in higher precision, as those of DeepSpeed, Megatron-LM and Apex do: layers keep the
names of the model that attention is computed from, what is put into the copies is not taken for the run's gradient,
and nothing is done anew in every step."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integrations" / "torch" / "python"))
from foreshock_torch import budget  # noqa: E402

pytestmark = pytest.mark.quick

MODEL = """
from torch import nn
class Toy(nn.Module):
    def __init__(self):
        super().__init__(); self.layers = nn.ModuleList(nn.Linear(32, 96) for _ in range(2))
    def forward(self, x):
        for layer in self.layers:
            x = x + sdpa(*[t.view(2, 8, 4, 8).transpose(1, 2) for t in layer(x).split(32, 2)]).reshape(2, 8, 32)
        return x
model = Toy().bfloat16()
def backward(): model(torch.randn(2, 8, 32, dtype=torch.bfloat16)).square().mean().backward()
def flat(tensors): return torch.cat([t.detach().flatten().float() for t in tensors])
"""

# As DeepSpeed steps its groups (stages 1 and 2) and sub-groups (stage 3): each alone in the optimizer.
IN_PIECES = f"""{MODEL}
from foreshock_torch import start
from foreshock_torch.modules import Modules
done = []
def counted(self, *given, real=Modules.named):
    done.append("named"); return real(self, *given)
Modules.named = counted
parts = [[p for p in model.parameters() if (p.dim() > 1) == matrices] for matrices in (True, False)]
copies = [nn.Parameter(flat(part)) for part in parts]
optimizer = torch.optim.AdamW([{{"params": [copy]}} for copy in copies], lr=1e-3)
for step in range(30):
    backward()
    groups = optimizer.param_groups
    for group, part, copy in zip(groups, parts, copies):
        copy.grad = flat([p.grad for p in part]) * 0.5           # clipped on the way
        optimizer.param_groups = [group]; optimizer.step(); optimizer.param_groups = groups
        values = copy.detach().split([p.numel() for p in part])
        for p, value in zip(part, values): p.data.copy_(value.view_as(p)); p.grad = None
print(json.dumps([events(), done]))
"""


def test_pieces_of_a_step(trainer) -> None:
    rows, done = trainer(IN_PIECES)
    kind = lambda name: [row for row in rows if row["event"] == name]  # noqa: E731
    assert [row["step"] for row in kind("step")] == [*range(1, 31)]
    assert done == ["named", "named"], "before the first step, and when the pieces are known"
    names = {row["identity"]: row["name"] for row in kind("name")}
    assert [names.get(row["layer"]) for row in kind("leave")][-4:] == [
        f"layers.{layer}.weight" for layer in (0, 1, 1, 0)
    ]
    assert not kind("gradients")
    assert [row["when"] for row in kind("weight")] == [0, 1], "of the first step only, when nobody knew"
    assert [row["unfollowed"] for row in kind("weight_name")[-2:]] == [1, 1], "both are said to be flat"
    assert not kind("off")


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_copy_s_gradient_is_not_the_run_s(trainer, by_hand: bool) -> None:
    """Clipped in a way of its own, it is not published; by torch's function its norm before is."""
    rows, truth = trainer(f"""{MODEL}
copies = [nn.Parameter(p.detach().float()) for p in model.parameters()]
optimizer = torch.optim.SGD(copies, lr=1e-3); truth = []
for _ in range(5):
    model.zero_grad(); backward()
    for copy, p in zip(copies, model.parameters()): copy.grad = p.grad.float() * ({by_hand} and 0.5 or 1.0)
    truth.append(sum(c.grad.double().square().sum().item() for c in copies))
    if not {by_hand}: nn.utils.clip_grad_norm_(copies, 0.01)
    optimizer.step()
print(json.dumps([events("gradients"), truth]))
""")
    if by_hand:
        assert not rows
    else:
        norms = [sum(row["squares"].values()) for row in rows]
        # torch's own norms in fp32, 2^-24 each, squared.
        assert all(abs(a - b) <= 1e-5 * b for a, b in zip(norms, truth, strict=True))


@pytest.mark.parametrize("elsewhere", [True, False])
@pytest.mark.parametrize(("first", "told"), [("0", [1, 2, 3]), ("torch.tensor(41)", [42, 43, 44]), ("None", [-1] * 3)])
def test_the_step_of_a_group(trainer, first: str, told: list[int], elsewhere: bool) -> None:
    """As the fused Adam of Apex and TransformerEngine counts; also where the gradients are no `.grad`."""
    rows = trainer(f"""{MODEL}
class Fused(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        if group["step"] is not None: group["step"] += 1
        for p in group["params"]: self.state[p] = {{"exp_avg": p.held}}; p.sub_(p.held, alpha=1e-3)
optimizer = Fused(model.parameters(), {{"step": {first}}})
for _ in range(3):
    backward()
    for p in model.parameters():
        p.held = p.grad
        if {elsewhere}: p.grad = None
    optimizer.step(); optimizer.zero_grad()
print(json.dumps(events("step")))
""")
    assert [row["step"] for row in rows] == told


def test_parameters_that_change_in_every_step_are_not_named_in_every_step(trainer) -> None:
    """With a parameter of no module."""
    named = trainer(f"""{MODEL}
import time
from foreshock_torch.modules import Modules
times = []
def slow(*given, real=Modules.named):
    times.append(1); time.sleep(0.01); return real(*given)
Modules.named = slow
optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(3))], lr=1e-3)
for _ in range(200):
    backward(); optimizer.param_groups[0]["params"].reverse(); optimizer.step(); optimizer.zero_grad()
print(json.dumps(len(times)))
""")
    assert 16 <= named < 200  # in each would be a hundredth of the time only if a step took 1 s


def test_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first times are free; then a hundredth of the time since it began, all times counted."""
    now = 0
    monkeypatch.setattr(budget, "perf_counter_ns", lambda: now)
    it = budget.RateLimit(free=2)
    for now, allowed in ((0, True), (1, True), (1_000, False), (199_999, False), (200_000, True), (299_999, False)):
        assert it.allows() is allowed, now
        if allowed:
            it.spend(1_000)
