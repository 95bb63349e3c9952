"""Health of AdamW: the sums over gradient and second moment, beside a straightforward computation in torch."""

from __future__ import annotations

import os
import pathlib
import struct
import subprocess
from typing import NamedTuple

import pytest
import torch

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")) / "bin" / "adam_program"
FORMATS = {torch.float64: 1, torch.float32: 2, torch.bfloat16: 3, torch.float16: 4}
BETA2, EPS = 0.99, 1e-4


class Sums(NamedTuple):
    counted: int
    nonfinite_gradient: int
    unusable_state: int
    staleness: float
    epsilon_dominated: int
    surprised: int
    surprise_counted: int
    gradient_squares: float


class Pair(NamedTuple):
    gradient: torch.Tensor
    moment: torch.Tensor
    step: int
    before: torch.Tensor | None = None  # the second moment that the step found


def to_bytes(tensor: torch.Tensor) -> bytes:
    """Its storage from its first element on, as it lies there."""
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())[tensor.storage_offset() :]
    return whole.view(torch.uint8).numpy().tobytes()


def packed(pair: Pair) -> bytes:
    dims = pair.gradient.dim()
    shape = (*pair.gradient.shape, *[1] * (4 - dims))
    strides = [(*tensor.stride(), *[0] * (4 - dims)) for tensor in (pair.gradient, pair.moment)]
    data = [to_bytes(pair.gradient), to_bytes(pair.moment)]
    head = struct.pack("<ddqqq", BETA2, EPS, pair.step, FORMATS[pair.gradient.dtype], FORMATS[pair.moment.dtype])
    return head + struct.pack("<12q2q", *shape, *strides[0], *strides[1], *map(len, data)) + b"".join(data)


def sums_of(pairs: list[Pair]) -> list[Sums]:
    done = subprocess.run([PROGRAM], input=b"".join(map(packed, pairs)), capture_output=True, check=True, timeout=300)
    rows = [line.split() for line in done.stdout.decode().splitlines()]
    assert len(rows) == len(pairs)
    return [Sums(*(float(word) if i in (3, 7) else int(word) for i, word in enumerate(row))) for row in rows]


def expected(pair: Pair) -> Sums:
    """As a reader of the definition would write it."""
    g, v = pair.gradient.double(), pair.moment.double()
    ok = torch.isfinite(g) & torch.isfinite(v) & (v >= 0)
    corrected = v[ok] / (1 - BETA2**pair.step)
    ratio = g[ok] ** 2 / torch.clamp(corrected, min=EPS**2)
    surprised = 0
    if pair.before is not None:
        surprised = int((g[ok] ** 2 > 50 * pair.before.double()[ok] / (1 - BETA2 ** (pair.step - 1))).sum())
    return Sums(
        int(ok.sum()), int((~torch.isfinite(g)).sum()), int((~(torch.isfinite(v) & (v >= 0))).sum()),
        ratio.sum().item(), int((corrected.sqrt() < EPS).sum()), surprised, int(ok.sum()) if pair.step > 1 else 0,
        (g[ok] ** 2).sum().item(),
    )  # fmt: skip


def trained(implementation: dict[str, bool], dtype: torch.dtype, steps: int = 6) -> list[Pair]:
    """A small model after some AdamW steps; its last batch is unlike those before."""
    torch.manual_seed(4)
    parts = [torch.nn.Embedding(50, 24), torch.nn.Linear(24, 40), torch.nn.ReLU(), torch.nn.Linear(40, 50)]
    model = torch.nn.Sequential(*parts).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, BETA2), eps=EPS, **implementation)
    for step in range(steps):
        tokens = torch.randint(30, (16,)) if step < steps - 1 else torch.arange(50)  # rows never used until the last
        loss = torch.nn.functional.cross_entropy(model(tokens).float(), tokens.roll(1)) * 10 ** (-step % 3)
        optimizer.zero_grad()
        loss.backward()
        before = {p: optimizer.state[p]["exp_avg_sq"].clone() for p in model.parameters() if optimizer.state[p]}
        optimizer.step()
    pairs = []
    for p in model.parameters():
        state = optimizer.state[p]
        assert int(state["step"]) == steps
        pairs.append(Pair(p.grad, state["exp_avg_sq"], steps, before[p]))
    return pairs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "implementation", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=["fused", "foreach", "loop"]
)
def test_as_torch_says_of_adamw(implementation, dtype):
    pairs = trained(implementation, dtype)
    for pair, found in zip(pairs, sums_of(pairs), strict=True):
        want = expected(pair)
        assert found.staleness == pytest.approx(want.staleness, rel=1e-6)
        assert found.gradient_squares == pytest.approx(want.gradient_squares, rel=1e-6)
        assert (found.counted, found.epsilon_dominated) == (want.counted, want.epsilon_dominated)
        assert (found.nonfinite_gradient, found.unusable_state) == (0, 0)
        assert found.surprise_counted == found.counted
        # The moment before the step is recovered from the one after it, which was rounded: an element this near to the
        # threshold may fall on the other side.
        g, v = pair.gradient.double(), pair.before.double() / (1 - BETA2 ** (pair.step - 1))
        ratio = g**2 / torch.where(v > 0, v, 1e-300)
        near = 0.1 if dtype == torch.bfloat16 else 1e-4
        doubtful = int(((ratio / 50 - 1).abs() < near).sum() + ((g != 0) & (v == 0)).sum() * (dtype == torch.bfloat16))
        assert abs(found.surprised - want.surprised) <= doubtful
    found = sums_of(pairs)
    assert sum(sums.surprised for sums in found) > 0
    assert 0 < sum(sums.epsilon_dominated for sums in found) < sum(sums.counted for sums in found)


@pytest.mark.parametrize("moment", FORMATS, ids=str)
@pytest.mark.parametrize("gradient", FORMATS, ids=str)
def test_strides_formats_and_what_is_not_finite(gradient, moment):
    torch.manual_seed(1)
    g = torch.randn(7, 33, 5, dtype=torch.float64)
    v = torch.rand(7, 33, 5, dtype=torch.float64) * torch.logspace(-12, 0, 33, dtype=torch.float64)[:, None]
    g[0, 0, 0], g[1, 1, 1], v[2, 2, 2], v[3, 3, 3] = float("nan"), float("inf"), float("nan"), -1
    g, v = g.to(gradient), v.to(moment)
    views = [
        Pair(g, v, 1),
        Pair(g, v, 30),
        Pair(g.permute(2, 0, 1), v.permute(2, 0, 1), 30),  # not packed, yet both dense in one order
        Pair(g.transpose(0, 1), v.transpose(0, 1).contiguous(), 30),
        Pair(g[::2, 3:, 1:], v[::2, 3:, 1:], 30),
        Pair(g[:, 0, 0].expand(33, 7), v[:, 0, 0].expand(33, 7).contiguous(), 30),
        Pair(g[:0], v[:0], 30),
    ]
    for pair, found in zip(views, sums_of(views), strict=True):
        want = expected(pair)
        assert found.staleness == pytest.approx(want.staleness, rel=1e-12)
        assert found.gradient_squares == pytest.approx(want.gradient_squares, rel=1e-12)
        assert found[:3] == want[:3]
        assert (found.epsilon_dominated, found.surprise_counted) == (want.epsilon_dominated, want.surprise_counted)
