"""What is told of gradients however a trainer clips them: the norms of before, or nothing."""

from __future__ import annotations

import pytest
from tiers import keep

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("adapters")]

TRAINING = """
from torch import nn
model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 2))
opt = torch.optim.SGD(model.parameters(), lr=1e-3); truth = []
parameters = list(model.parameters())
def grads(): return [p.grad for p in parameters]
def squares(): return {str(p._cdata): p.grad.double().square().sum().item() for p in parameters}
def total(norms): return sum(n.item() ** 2 for n in norms) ** 0.5
def scale(): return 1e-3
for _ in range(3):
    opt.zero_grad(); (100 * model(torch.randn(8, 6)).square().mean()).backward()
    truth.append(squares())
    {clip}
    opt.step()
print(json.dumps([events("gradients"), truth]))
"""
VALUE = "nn.utils.clip_grad_value_(parameters, 1e-3)"
NORM = "nn.utils.clip_grad_norm_(parameters, 1e-3)"
LOG = "nn.utils.get_total_norm(grads())"


def told(trainer, clip: str) -> tuple[list, list]:
    return trainer(TRAINING.replace("{clip}", clip))


def check(rows: list, truth: list, tolerance: float) -> None:
    assert len(rows) == len(truth)
    for row, expected in zip(rows, truth, strict=True):
        assert row["squares"] == {key: pytest.approx(value, rel=tolerance) for key, value in expected.items()}


@pytest.mark.parametrize(
    "clip",
    [
        NORM,
        "nn.utils.clip_grad_norm_(parameters, 1e-3, foreach=False)",
        "t = total([p.grad.data.norm(2) for p in parameters]); [p.grad.data.mul_(1e-3 / t) for p in parameters]",
        "t = total([p.grad.detach().norm() for p in parameters]); [p.grad.data.mul_(1e-3 / t) for p in parameters]",
        "data = [g.data for g in grads()]; t = total(torch._foreach_norm(data)); torch._foreach_mul_(data, 1e-3 / t)",
        "[g.view(-1).norm() for g in grads()]; [g.data.clamp_(-1e-3, 1e-3) for g in grads()]",
        f"nn.utils.clip_grad_norm_(parameters, 1e9); {VALUE}; {LOG}",
    ],
)
def test_norms_that_were_taken_before_are_told(trainer, clip: str) -> None:
    rows, truth = told(trainer, clip)
    assert [row["from_values"] for row in rows] == [False] * 3
    check(rows, truth, 1e-5)  # torch's own norm in fp32: 24 terms, 2^-24 each, squared


@pytest.mark.parametrize("average", ["g.div_(4)", "g.data.div_(4)"])
def test_gradients_that_were_averaged_by_hand_have_norms(trainer, average: str) -> None:
    rows, truth = told(trainer, f"[{average} for g in grads()]; truth[-1] = squares(); {NORM}")
    check(rows, truth, 1e-5)


@pytest.mark.parametrize(
    "look",
    [
        "[p.grad.abs().max().item() for p in parameters]",
        "[p.data.norm() for p in parameters]",  # the weights', of the same shapes
        "torch.randn(1000).norm()",
        "torch.ones(24).clamp_(max=0.5)",
    ],
)
def test_whoever_only_looks_clips_nothing(trainer, look: str) -> None:
    rows, truth = told(trainer, look)
    assert [row["from_values"] for row in rows] == [True] * 3
    check(rows, truth, 1e-12)


@pytest.mark.parametrize(
    "clip",
    [
        VALUE,
        "with torch.no_grad(): [g.mul_(1e-3) for g in grads()]",
        "[g.detach().mul_(1e-3) for g in grads()]",
        # By value, with writes that move no version of the gradient.
        "[g.data.clamp_(-1e-3, 1e-3) for g in grads()]",
        "[g.data.clamp_(max=1e-3) for g in grads()]",
        "[g.data.clip_(-1e-3, 1e-3) for g in grads()]",
        "[g.data.clamp_(torch.tensor(-1e-3), torch.tensor(1e-3)) for g in grads()]",
        "[g.data.clamp_min_(-1e-3).clamp_max_(1e-3) for g in grads()]",
        "torch._foreach_clamp_max_([g.data for g in grads()], 1e-3)",
        # Logged afterwards: the norms are not those of before.
        f"{VALUE}; {LOG}",
        f"nn.utils.clip_grad_value_(parameters, 1e-3, foreach=False); {LOG}",
        f"[g.data.clamp_(-1e-3, 1e-3) for g in grads()]; {LOG}",
        f"parameters[0].grad.data.clamp_(-1e-3, 1e-3); {LOG}",
        # Other tensors in their place.
        "for p in parameters: p.grad = p.grad * 1e-3",
        "for p in parameters: p.grad = p.grad.data.clamp(-1e-3, 1e-3)",
        "for p in parameters: p.grad.data = p.grad * 1e-3",
        "parameters[0].grad = parameters[0].grad * 1e-3",
        # By norms that were taken of copies.
        "t = total([g.clone().norm() for g in grads()]); [g.data.mul_(1e-3 / t) for g in grads()]",
        "t = total([g.double().norm() for g in grads()]); [g.data.mul_(1e-3 / t) for g in grads()]",
        "t = torch.cat([g.flatten() for g in grads()]).norm(); [g.data.mul_(1e-3 / t) for g in grads()]",
    ],
)
def test_what_may_be_of_after_clipping_is_not_told(trainer, clip: str) -> None:
    rows, truth = told(trainer, clip)
    assert len(truth) == 3
    assert rows == []


def test_a_tensor_that_the_engine_copied_is_a_gradient_like_others(trainer) -> None:
    """Of two parameters that share one: it is given to neither."""
    rows, truth = trainer("""
a, b, c = (torch.nn.Parameter(torch.randn(4)) for _ in range(3))
opt = torch.optim.SGD([a, b, c], lr=0.1); truth = []
for _ in range(3):
    opt.zero_grad(); ((a + b).square().sum() + c.square().sum()).backward()
    truth.append({str(p._cdata): p.grad.double().square().sum().item() for p in (a, b, c)}); opt.step()
print(json.dumps([events("gradients"), truth]))
""")
    check(rows, truth, 1e-12)


@pytest.mark.parametrize("clip", keep([NORM, "pass"], NORM))
def test_more_gradients_than_there_is_room_for_are_counted(trainer, clip: str) -> None:
    """Room is for 65536, one of which is the norm of all norms where somebody clips."""
    told = trainer(f"""
        from torch import nn
        told = []
        for count in (65535, 65537):
            parameters = [nn.Parameter(torch.ones(1)) for _ in range(count)]
            opt = torch.optim.SGD(parameters, lr=1e-3)
            torch.cat(parameters).square().sum().backward()
            {clip}
            opt.step()
            rows = events()
            kinds = [row["event"] for row in rows if row["event"].startswith("gradients")]
            told.append([kinds, [len(row["squares"]) for row in rows if row["event"] == "gradients"]])
        print(json.dumps(told))
    """)
    assert told == [[["gradients"], [65535]], [["gradients_too_many"], []]]
