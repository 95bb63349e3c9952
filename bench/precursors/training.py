"""One training of the benchmark of detectors: `training.py RECIPE SEED [STEPS]`. recording.py starts it under the
monitor; this file does not use the monitor. A recipe (recipes.py, `what` below) names the model (text or copying: a
small GPT; net: a regression) and the fault, which begins at a step. A training without a fault is a control (twin)."""

from __future__ import annotations

import math
import pathlib
import sys
import warnings
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "integrations" / "torch" / "demo"), str(ROOT / "bench" / "precursors")]

import recipes  # noqa: E402
import torch  # noqa: E402
import train as demo  # noqa: E402
from fault import ErringAttention, moved  # noqa: E402
from torch import Tensor, nn  # noqa: E402

SIZE = demo.Size(layers=recipes.LAYERS, heads=2, kv_heads=2, width=32, context=64, batch=4)
RATE, RATE_OF_COPYING = 2e-3, 4e-3  # learning rates
PERIOD, SYMBOLS, NOISE = 2, 32, 0.25  # of Copying: length of the repeated sequence, alphabet, share of wrong symbols
FLASH = "_scaled_dot_product_flash_attention_for_cpu"  # torch's attention kernel


class Plant:
    """Plants an error of attention in one layer, while `is_on`. A step makes one call in each layer, in order, so the
    number of a call gives its layer. `ulps`: the size of the error in spacings of the number format (ulp)."""

    def __init__(self, layer: int, ulps: float, seed: int) -> None:
        self.layer, self.ulps, self.is_on, self.calls = layer, ulps, False, 0
        self.numbers = torch.Generator().manual_seed(seed)  # does not change torch's global generator

    def errs(self) -> bool:
        """Counts the call that begins. Returns whether its result must be made wrong."""
        self.calls += 1
        return self.is_on and (self.calls - 1) % SIZE.layers == self.layer


class FollowingPlant(Plant):
    """Plants an error in the output that only the backward pass reads (ErringAttention): the output is moved in the
    direction of its own gradient. The forward pass stays right. An object of this class replaces torch.nn.functional
    in the model's module; only attention differs."""

    def __getattr__(self, name: str) -> Callable:
        return getattr(nn.functional, name)

    def scaled_dot_product_attention(self, q: Tensor, k: Tensor, v: Tensor, **_more: bool) -> Tensor:
        return ErringAttention.apply(q, k, v, self.ulps if self.errs() else 0.0, self.numbers)


class OtherKernel(Plant):
    """Base of kernels that replace torch's own attention kernel in the dispatcher, so that the monitor sees their
    output. A derived class changes the results of the original kernel in __call__, whose `keys` are dispatch keys."""

    def __init__(self, layer: int, ulps: float, seed: int) -> None:
        super().__init__(layer, ulps, seed)
        self.original = torch.library.get_kernel(f"aten::{FLASH}", "CPU")
        self.library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a kernel is replaced
            self.library.impl(FLASH, self, "CPU", with_keyset=True)


class WrongKernel(OtherKernel):
    """Plants an error that is unrelated to the gradient: moves the output away from zero."""

    def __call__(self, keys: object, *arguments: object, **more: object) -> tuple[Tensor, Tensor]:
        out, lse = self.original.call_boxed(keys, *arguments, **more)
        if self.errs():
            out.copy_(moved(out, out, self.ulps, self.numbers))
        return out, lse


class RoundedReference(OtherKernel):
    """Causal attention in fp64 in all layers and steps, with results rounded once. No kernel can be more exact."""

    def __call__(self, keys: object, *arguments: object, **more: object) -> tuple[Tensor, Tensor]:
        out, lse = self.original.call_boxed(keys, *arguments, **more)
        q, k, v = (each.double() for each in arguments[:3])
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
        out.copy_(scores.softmax(-1) @ v)
        lse.copy_(scores.logsumexp(-1))
        return out, lse


class Fault:
    """Changes of the learning rate and the data by a recipe's fault, by step. gpt() makes the other changes."""

    def __init__(self, what: recipes.Recipe, seed: int) -> None:
        self.name, self.is_on, self.begin = what.name, what.arm == "fault", what.begin(seed)

    def has_begun(self, step: int) -> bool:
        return self.is_on and step >= self.begin

    def rate(self, step: int) -> float:
        """The factor by which the fault multiplies the learning rate."""
        if not self.has_begun(step):
            return 1.0
        if self.name == "rate-ramp":
            return 2.0 ** min(20.0, (step - self.begin) / 12)
        return 300.0 if self.name == "rate-jump" else 1.0

    def share_corrupt(self, step: int) -> float:
        """The share of the text's bytes that are random."""
        if not self.has_begun(step):
            return 0.0
        if self.name == "corrupt-batches":
            return 1.0 if step < self.begin + 8 else 0.0
        return min(1.0, (step - self.begin) / 256) if self.name == "corrupt-ramp" else 0.0


def without_norms(model: nn.Module, kinds: tuple[str, ...]) -> None:
    """Replaces the RMSNorms whose names are in `kinds` by the identity."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.RMSNorm) and name in kinds:
                setattr(module, name, nn.Identity())


def grow_scores(model: demo.Gpt, factor: float) -> None:
    """Multiplies the weights that compute queries and keys: the first two thirds of the rows of qkv."""
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv.weight[: 2 * SIZE.width] *= factor


class Source:
    """Batches of text: tokens, and as targets the tokens that follow them. The fault replaces some by random ones."""

    def __init__(self, fault: Fault, seed: int) -> None:
        self.text, self.fault = demo.Text(seed), fault
        self.numbers = torch.Generator().manual_seed(seed)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        tokens, targets = self.text.batch(SIZE)
        corrupt = self.fault.share_corrupt(step)
        if corrupt == 0:
            return tokens, targets
        row = torch.cat([tokens, targets[:, -1:]], 1)
        noise = torch.randint(demo.BYTES, row.shape, generator=self.numbers)
        row = torch.where(torch.rand(row.shape, generator=self.numbers) < corrupt, noise, row)
        return row[:, :-1], row[:, 1:]


class Copying:
    """Batches of rows that repeat PERIOD symbols, some of them replaced by wrong ones. To predict a symbol, the model
    must attend to many earlier places of that symbol, so an error of attention raises the loss. The loss would not rise
    for text, which so small a model learns without attention, or for rows without wrong symbols."""

    def __init__(self, seed: int) -> None:
        self.numbers = torch.Generator().manual_seed(seed)

    def batch(self, _step: int) -> tuple[Tensor, Tensor]:
        once = torch.randint(SYMBOLS, (SIZE.batch, PERIOD), generator=self.numbers)
        row = once.repeat(1, SIZE.context // PERIOD + 1)[:, : SIZE.context + 1]
        other = torch.randint(SYMBOLS, row.shape, generator=self.numbers)
        row = torch.where(torch.rand(row.shape, generator=self.numbers) < NOISE, other, row)
        return row[:, :-1], row[:, 1:]


def planted(what: recipes.Recipe, seed: int) -> Plant | None:
    """Installs the attention error of a recipe, or the control that only rounds; None if it has neither."""
    if what.plant == "following":
        demo.functional = FollowingPlant(what.layer(seed), what.dose, seed)
        return demo.functional
    kernels = {"unrelated": WrongKernel, "rounded": RoundedReference}
    return kernels[what.plant](what.layer(seed), what.dose, seed) if what.plant else None


def gpt(what: recipes.Recipe, seed: int, steps: int) -> None:
    """Trains a GPT on text, or on the rows of Copying, with the recipe's fault."""
    fault, copies = Fault(what, seed), what.model == recipes.COPYING
    model = demo.Gpt(SIZE)
    source, rate = (Copying(seed), RATE_OF_COPYING) if copies else (Source(fault, seed), RATE)
    if copies:  # normalised queries and keys would bound the scores, and so the effect of an error
        without_norms(model, ("query_norm", "key_norm"))
    plant = planted(what, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(1, steps + 1):
        warm = min(1.0, step / 50)  # warm-up of the learning rate
        for group in optimizer.param_groups:
            group["lr"] = rate * warm * fault.rate(step)
        if plant:
            plant.is_on = fault.has_begun(step)
        if what.growth and fault.has_begun(step):
            grow_scores(model, 1 + what.growth)
        optimizer.zero_grad()
        demo.loss_of(model, source.batch(step), False).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def net(eps: float, steps: int) -> None:
    """Trains a regression of sin x + sin 4x at 200 points, all of them at every step. `eps`: Adam's. The fault is a
    small eps (main()), with which Adam becomes unstable."""
    x = torch.linspace(-math.pi, math.pi, 200)[:, None]
    y = torch.sin(x) + torch.sin(4 * x)
    model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, betas=(0.9, 0.999), eps=eps)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), float("inf"))  # clips nothing; the monitor reads the norm from it
        optimizer.step()


def main() -> None:
    what, seed = recipes.recipe(sys.argv[1]), int(sys.argv[2])
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else what.steps
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    if what.model == recipes.NET:
        net(1e-8 if what.arm == "fault" else 1e-1, steps)
    else:
        gpt(what, seed, steps)


if __name__ == "__main__":
    main()
