"""One training of the benchmark: `training.py RECIPE ARM SEED [STEPS]`. It knows of no monitor."""

from __future__ import annotations

import math
import pathlib
import sys
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "integrations" / "torch" / "demo"), str(ROOT / "bench" / "precursors")]

import recipes  # noqa: E402
import torch  # noqa: E402
import train as demo  # noqa: E402
from torch import Tensor, nn  # noqa: E402

SIZE = demo.Size(layers=2, heads=2, kv_heads=2, width=32, context=64, batch=4)
RATE, RATE_OF_COPYING = 2e-3, 4e-3
PERIOD, SYMBOLS, NOISE = 2, 32, 0.25  # of the texts to be copied; share of symbols that are wrong
GROWTH = 1.06  # of the weights that make queries and keys, a step
attention_of_torch = torch.nn.functional.scaled_dot_product_attention


def moved(out: Tensor, outwards: Tensor, ulps: float, numbers: torch.Generator) -> Tensor:
    """bf16 values moved by `ulps` spacings on average, away from zero where `outwards`, else towards it."""
    whole = math.floor(ulps)
    count = whole + (torch.rand(out.shape, generator=numbers) < ulps - whole).to(torch.int16)
    bits = out.contiguous().view(torch.int16) + torch.where(outwards, count, -count)
    return torch.where(out.abs() > 2**-100, bits.view(torch.bfloat16), out)


class WrongAttention(torch.autograd.Function):
    """Causal attention by torch's own kernels, whose output errs: `follows`, only where backward reads it and in the
    direction of its gradient; else for everybody and away from zero."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, ulps: float, follows: bool, numbers: torch.Generator) -> Tensor:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        if not follows:
            out = moved(out, torch.ones_like(out, dtype=torch.bool), ulps, numbers)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.how = ulps if follows else 0.0, numbers
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple:
        (q, k, v, out, lse), (ulps, numbers) = ctx.saved_tensors, ctx.how
        if ulps > 0:
            out = moved(out, (out > 0) == (grad > 0), ulps, numbers)
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        return *backward(grad, q, k, v, out, lse, 0.0, True), None, None, None


class Functional:
    """torch.nn.functional, in which attention is wrong from a step on."""

    def __init__(self, follows: bool, ulps: float, seed: int) -> None:
        self.follows, self.ulps, self.is_on = follows, ulps, False
        self.numbers = torch.Generator().manual_seed(seed)  # of its own: the training draws none of these

    def __getattr__(self, name: str) -> Callable:
        return getattr(nn.functional, name)

    def scaled_dot_product_attention(self, q: Tensor, k: Tensor, v: Tensor, **_more: bool) -> Tensor:
        # The twin goes the same way, with an error of nothing.
        return WrongAttention.apply(q, k, v, self.ulps if self.is_on else 0.0, self.follows, self.numbers)


class Fault:
    """What a recipe changes in an arm, by the step."""

    def __init__(self, what: recipes.Recipe, arm: str, seed: int) -> None:
        self.name, self.is_on, self.begin, self.dose = what.name, arm == "fault", what.begin(seed), what.dose
        self.seed = seed

    def has_begun(self, step: int) -> bool:
        return self.is_on and step >= self.begin

    def rate(self, step: int) -> float:
        """The learning rate, over that of the recipe."""
        if not self.has_begun(step):
            return 1.0
        if self.name == "rate-ramp":
            return 2.0 ** min(20.0, (step - self.begin) / 12)
        return 300.0 if self.name == "rate-jump" else 1.0


def without_norms(model: nn.Module, kinds: tuple[str, ...]) -> None:
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.RMSNorm) and name in kinds:
                setattr(module, name, nn.Identity())


def grow_scores(model: demo.Gpt, factor: float) -> None:
    """Multiplies the weights that make queries and keys."""
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv.weight[: 2 * SIZE.width] *= factor


class Source:
    """Batches of text; some of them are not what they should be."""

    def __init__(self, fault: Fault, seed: int) -> None:
        self.text, self.fault = demo.Text(seed), fault
        self.numbers = torch.Generator().manual_seed(seed)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        tokens, targets = self.text.batch(SIZE)
        fault = self.fault
        if fault.name == "corrupt-batches" and fault.has_begun(step) and step < fault.begin + 8:
            noise = torch.randint(demo.BYTES, (SIZE.batch, SIZE.context + 1), generator=self.numbers)
            return noise[:, :-1], noise[:, 1:]
        return tokens, targets


class Copying:
    """Rows that repeat PERIOD symbols, with errors: what comes next is known to who attends to many of the places where
    it stood before. Python's source, which so small a model learns without attention, does not suffer when that fails,
    nor do rows without errors, where any one place will do."""

    def __init__(self, seed: int) -> None:
        self.numbers = torch.Generator().manual_seed(seed)

    def batch(self, _step: int) -> tuple[Tensor, Tensor]:
        once = torch.randint(SYMBOLS, (SIZE.batch, PERIOD), generator=self.numbers)
        row = once.repeat(1, SIZE.context // PERIOD + 1)[:, : SIZE.context + 1]
        other = torch.randint(SYMBOLS, row.shape, generator=self.numbers)
        row = torch.where(torch.rand(row.shape, generator=self.numbers) < NOISE, other, row)
        return row[:, :-1], row[:, 1:]


def gpt(fault: Fault, seed: int, steps: int) -> None:
    model, copies = demo.Gpt(SIZE), fault.name in ("logit-growth", "following-bias", "unrelated-bias")
    source, rate = (Copying(seed), RATE_OF_COPYING) if copies else (Source(fault, seed), RATE)
    if copies:  # normalised queries and keys bound the scores, and with them what an error can do
        without_norms(model, ("query_norm", "key_norm"))
    wrong = None
    if fault.dose > 0:
        wrong = demo.functional = Functional(fault.name == "following-bias", fault.dose, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(1, steps + 1):
        warm = min(1.0, step / 50)
        for group in optimizer.param_groups:
            group["lr"] = rate * warm * fault.rate(step)
        if wrong:
            wrong.is_on = fault.has_begun(step)
        if fault.name == "logit-growth" and fault.has_begun(step):
            grow_scores(model, GROWTH)
        optimizer.zero_grad()
        demo.loss_of(model, source.batch(step), False).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def net(fault: Fault, steps: int) -> None:
    """A regression of sin x + sin 4x at 200 points, the whole of them at every step."""
    x = torch.linspace(-math.pi, math.pi, 200)[:, None]
    y = torch.sin(x) + torch.sin(4 * x)
    model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, betas=(0.9, 0.999), eps=1e-8 if fault.is_on else 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), float("inf"))  # clips nothing; its norms are there to be seen
        optimizer.step()


def main() -> None:
    name, arm, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    what = recipes.recipe(name)
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else what.steps
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    fault = Fault(what, arm, seed)
    if name == "adam-net":
        net(fault, steps)
    else:
        gpt(fault, seed, steps)


if __name__ == "__main__":
    main()
