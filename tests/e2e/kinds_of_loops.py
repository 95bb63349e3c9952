"""Sound trainings of kinds_training.py with unlike loops, processes and ranks."""

import copy
import pathlib
import subprocess
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from kind_parts import LENGTH, STEPS, adamw, classes, classify, cosine, gpt, kind, loop, perceptron
from tiny_gpt import Batches, TinyGpt, loss_of, two_ranks
from torch import nn
from torch.nn import functional

# The loop.


@kind
def accumulated() -> None:
    model, loss = gpt(layers=1)
    loop(model, adamw(model), loss, pieces=4)


@kind
def accumulated_unevenly() -> None:
    """The last group of each epoch has fewer micro-batches."""
    model, loss = gpt(layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        loop(model, optimizer, loss, pieces=1 if step % 10 == 9 else 3, steps=1)


def scaled(scale: float, growth: int) -> None:
    model, batches = TinyGpt(layers=2, precision=torch.float32), Batches(batch=4, length=LENGTH)
    optimizer, scaler = adamw(model), torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model, batches())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@kind
def scaler() -> None:
    scaled(2.0**16, 2000)


@kind
def scaler_that_searches_its_scale() -> None:
    """The first steps are skipped until the scale has fallen, and one in about twenty later."""
    scaled(2.0**30, 20)


@kind
def evaluated_now_and_then() -> None:
    model, loss = gpt(dropout=0.1)

    @torch.no_grad()
    def after(step: int) -> None:
        if step % 50 == 49:
            model.eval()
            for _ in range(40):
                loss()
            model.train()

    loop(model, adamw(model), loss, after=after)


@kind
def measured_with_gradients_now_and_then() -> None:
    """Backward passes without a step: the gradients are measured on twenty batches and dropped."""
    model, loss = gpt()

    def after(step: int) -> None:
        if step % 50 == 49:
            for _ in range(20):
                loss().backward()
            model.zero_grad()

    loop(model, adamw(model), loss, after=after)


@kind
def attacked() -> None:
    """Adversarial training: several backward passes to the input, then one to the weights."""
    model = perceptron()

    def loss() -> torch.Tensor:
        x, label = classes()
        moved = torch.zeros_like(x)
        for _ in range(3):
            moved.requires_grad_()
            (slope,) = torch.autograd.grad(functional.cross_entropy(model(x + moved), label), moved)
            moved = (moved + 0.05 * slope.sign()).clamp(-0.1, 0.1).detach()
        return functional.cross_entropy(model(x + moved), label)

    loop(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), loss)


@kind
def rolled_back() -> None:
    """At step 120 the process loads its checkpoint of step 80 with all states and goes on."""
    model, loss = gpt()
    optimizer, kept = adamw(model), {}

    def after(step: int) -> None:
        if step == 80:
            kept.update(copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
        if step == 120:
            model.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])

    loop(model, optimizer, loss, after=after)


@kind
def two_trainings_in_a_row() -> None:
    """Folds of a cross-validation."""
    for _ in range(2):
        model = perceptron()
        loop(model, adamw(model), classify(model), steps=STEPS // 2)


@kind
def resumed_in_a_new_process() -> None:
    folder = pathlib.Path(sys.argv[3])
    if len(sys.argv) < 5:
        for part in ("1", "2"):
            subprocess.run([sys.executable, *sys.argv[:4], part], check=True)
        return
    model, loss = gpt()
    optimizer = adamw(model)
    schedule = cosine(optimizer)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    if sys.argv[4] == "2":
        loaded = torch.load(folder / "checkpoint.pt", weights_only=False)
        for name, part in parts.items():
            part.load_state_dict(loaded[name])
    loop(model, optimizer, loss, schedule=schedule, steps=STEPS // 2)
    torch.save({name: part.state_dict() for name, part in parts.items()}, folder / "checkpoint.pt")


@kind
def compiled() -> None:
    model, _ = gpt()
    run, batches = torch.compile(model, backend="aot_eager"), Batches(batch=4, length=LENGTH)
    loop(model, adamw(model), lambda: loss_of(run, batches()))


@kind
def weights_in_bf16_with_fp32_masters() -> None:
    model, loss = gpt()
    model.bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=2e-3)
    for _ in range(STEPS):
        model.zero_grad()
        loss().backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters(), strict=True):
                p.copy_(master)


# Several ranks.


def ranks(train: Callable[[int], None]) -> None:
    two_ranks(train, f"{sys.argv[3]}/store")


@kind
def data_parallel() -> None:
    def train(rank: int) -> None:
        model, batches = nn.parallel.DistributedDataParallel(TinyGpt(layers=1)), Batches(rank, 4, LENGTH)
        loop(model, adamw(model), lambda: loss_of(model, batches()), clip=1.0)

    ranks(train)


@kind
def data_parallel_accumulated() -> None:
    def train(rank: int) -> None:
        model, batches = nn.parallel.DistributedDataParallel(TinyGpt(layers=1)), Batches(rank, 4, LENGTH)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(STEPS):
            optimizer.zero_grad()
            with model.no_sync():
                (loss_of(model, batches()) / 2).backward()
            (loss_of(model, batches()) / 2).backward()
            optimizer.step()

    ranks(train)


@kind
def sharded() -> None:
    def train(rank: int) -> None:
        from torch.distributed.fsdp import fully_shard

        dist.init_device_mesh("cpu", (2,))
        model, batches = TinyGpt(layers=2), Batches(rank, 4, LENGTH)
        for block in model.blocks:
            fully_shard(block, mesh=dist.init_device_mesh("cpu", (2,)))
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
        loop(model, adamw(model), lambda: loss_of(model, batches()), clip=1.0)

    ranks(train)
