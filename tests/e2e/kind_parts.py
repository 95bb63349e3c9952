"""Parts of the trainings of kinds_training.py: models, the usual loop, and the table of kinds."""

import math
import sys
from collections.abc import Callable

import torch
from tiny_gpt import Batches, TinyGpt, loss_of
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

WIDTH, LENGTH = 32, 24
# The second argument of kinds_training.py.
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2].isdigit() else 200
KINDS: dict[str, Callable[[], None]] = {}
Loss = Callable[[], torch.Tensor]


def kind(made: Callable[[], None]) -> Callable[[], None]:
    KINDS[made.__name__] = made
    return made


def loop(
    model: nn.Module,
    optimizers: torch.optim.Optimizer | list[torch.optim.Optimizer],
    loss: Loss,
    *,
    schedule: lr_scheduler.LRScheduler | None = None,
    clip: float | None = None,
    pieces: int = 1,
    before: Callable[[int], None] = lambda step: None,
    after: Callable[[int], None] = lambda step: None,
    steps: int | None = None,
) -> None:
    optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
    for step in range(STEPS if steps is None else steps):
        before(step)
        for each in optimizers:
            each.zero_grad()
        for _ in range(pieces):
            (loss() / pieces).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        for each in optimizers:
            each.step()
        if schedule is not None:
            schedule.step()
        after(step)


def gpt(**options) -> tuple[TinyGpt, Loss]:
    model, batches = TinyGpt(**({"layers": 2} | options)), Batches(batch=4, length=LENGTH)
    return model, lambda: loss_of(model, batches())


def perceptron(out: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, out))


TRUTH = torch.randn(8, 4, generator=torch.Generator().manual_seed(5))


def classes(noise: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and their class, which noise hides in part, so that the loss stays above 0."""
    x = torch.randn(32, 8)
    return x, (x @ TRUTH + noise * torch.randn(32, 4)).argmax(1)


def classify(model: nn.Module) -> Loss:
    def loss() -> torch.Tensor:
        x, label = classes()
        return functional.cross_entropy(model(x), label)

    return loss


def cosine(optimizer: torch.optim.Optimizer, warm: int = 10) -> lr_scheduler.LambdaLR:
    return lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    )


def adamw(model: nn.Module, rate: float = 2e-3, **options) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate, **options)
