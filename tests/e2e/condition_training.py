"""A small training whose loop has a known fault, or none: python condition_training.py KIND [PART FILE]."""

import math
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
import torch.distributed as dist
from tiny_gpt import Batches, TinyGpt, fingerprint, leave_group, loss_of, set_up, tell
from torch import nn

LENGTH = 32


class NormWithoutGradient(torch.autograd.Function):
    """A scale whose backward pass forgets the gradient of the gain."""

    @staticmethod
    def forward(ctx, x, gain):
        ctx.save_for_backward(gain)
        return x * gain

    @staticmethod
    def backward(ctx, gradient):
        (gain,) = ctx.saved_tensors
        return gradient * gain, None


class Gain(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return NormWithoutGradient.apply(x, self.gain)


class Training:
    """The usual loop; the kinds change its parts."""

    def __init__(self, rate: float = 3e-3, model: nn.Module | None = None, **options) -> None:
        self.model = TinyGpt(layers=1) if model is None else model
        self.batches = Batches(batch=4, length=LENGTH)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, **options)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=50, enabled=False)
        self.losses = []

    def step(
        self, tokens: torch.Tensor | None = None, pieces: int = 1, overflow: bool = False, factor: float = 1.0
    ) -> None:
        self.optimizer.zero_grad()
        for _ in range(pieces):
            loss = loss_of(self.model, self.batches() if tokens is None else tokens)
            if overflow:  # a gradient of Inf, and no change of the loss
                weight = self.model.head.weight[0, 0]
                loss = loss + torch.sqrt((weight - weight.detach()).abs())
            self.scaler.scale(loss * factor / pieces).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.losses.append(loss.item())

    def end(self) -> None:
        tell(bits=fingerprint(self.losses, self.model), losses=self.losses)


def cosine(step: int, total: int, warm: int = 10) -> float:
    return min(1.0, step / warm) * 0.5 * (1 + math.cos(math.pi * step / total))


def sound() -> None:
    """Frozen parameters in the optimizer, an embedding tied to the head, accumulation, a scaler that overflows twice,
    and a rate that begins and ends at 0."""
    model = TinyGpt(layers=1)
    model.head.weight = model.embedding.weight
    for parameter in model.blocks[0].up.parameters():
        parameter.requires_grad_(False)
    training = Training(model=model)
    training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=50)
    schedule = torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda step: cosine(step, 150))
    for step in range(1, 151):
        training.step(pieces=2, overflow=step in (60, 61))
        schedule.step()
    training.end()


def overflows() -> None:
    """From iteration 41 on each gradient is Inf."""
    training = Training()
    training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    for step in range(1, 101):
        training.step(overflow=step > 40)
    training.end()


def no_gradient() -> None:
    model = TinyGpt(layers=2)
    for block in model.blocks:
        block.norm1 = nn.Sequential(nn.LayerNorm(32), Gain(32))
    training = Training(model=model)
    for _ in range(150):
        training.step()
    training.end()


def left_out() -> None:
    """The head is replaced, and the optimizer keeps the old one. The loss is divided by the number of micro-batches,
    and there is only one."""
    training = Training()
    for step in range(1, 221):
        if step == 10:
            training.model.head.weight = nn.Parameter(training.model.head.weight.detach().clone())
        training.step(factor=0.25)
    training.end()


def rate_of_zero() -> None:
    training = Training(rate=0.0)
    for _ in range(150):
        training.step()
    training.end()


def rate_comes_back() -> None:
    training = Training()
    schedule = torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda step: cosine(step, 150))
    for _ in range(150):
        training.step()
        schedule.step()
        schedule.step()
    training.end()


def small_updates() -> None:
    """Weights in bf16, and steps far below half a spacing of most of them."""
    training = Training(rate=2e-5, model=TinyGpt(layers=1).bfloat16(), weight_decay=0.0)
    for _ in range(200):
        training.step()
    training.end()


def one_bad_batch() -> None:
    """A batch of noise. A part of every batch is noise: a loss near 0 would stay high after the bad one, as a spike."""
    training = Training()
    generator = torch.Generator().manual_seed(7)
    for step in range(1, 301):
        noise = torch.randint(64, (4, LENGTH + 1), generator=generator)
        is_noise = torch.rand(noise.shape, generator=generator) < (1 if step == 280 else 0.1)
        training.step(tokens=torch.where(is_noise, noise, training.batches()))
    training.end()


def gradients_underflow() -> None:
    """A loss so small that each gradient in fp16 is 0, as without a scaler. From step 101 on."""
    training = Training(weight_decay=0.0)
    for step in range(1, 151):
        training.step(factor=0.0 if step > 100 else 1.0)
    training.end()


def no_label_counts() -> None:
    """From step 101 on the mask leaves no label."""
    training = Training()
    for step in range(1, 151):
        tokens = training.batches()
        training.optimizer.zero_grad()
        logits = training.model(tokens[:, :-1]).flatten(0, 1)
        each = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
        mask = torch.full_like(each, float(step <= 100))
        ((each * mask).sum() / mask.sum().clamp(min=1)).backward()
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.optimizer.step()
    training.end()


def rate_jumps() -> None:
    """SGD; a second scheduler takes over with the rate of another optimizer."""
    training = Training()
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=1e-2)
    for step in range(1, 151):
        training.optimizer.param_groups[0]["lr"] = 1e-2 if step < 120 else 0.3
        training.step()
    training.end()


def clipped_while_scaled() -> None:
    """Clipping to 1 before the scaler has taken its factor out."""
    training = Training()
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1, momentum=0.9)
    training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for _ in range(200):
        training.optimizer.zero_grad()
        training.scaler.scale(loss_of(training.model, training.batches())).backward()
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.scaler.step(training.optimizer)
        training.scaler.update()
    training.end()


def shuffled_labels(store: str, *numbers: str) -> None:
    """Three ranks under DDP; those of `numbers` shuffle their labels."""
    if "RANK" not in os.environ:
        ranks_of(3, "shuffled_labels", store, *numbers)
    own = os.environ["RANK"]
    dist.init_process_group("gloo", store=dist.FileStore(store, 3), rank=int(own), world_size=3)
    model = nn.parallel.DistributedDataParallel(TinyGpt(layers=1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = Batches(10 + int(own), batch=4, length=LENGTH)
    for _ in range(200):
        tokens = batches()
        labels = tokens[:, 1:].flatten()
        if own in numbers:
            labels = labels[torch.randperm(len(labels))]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), labels).backward()
        optimizer.step()
    leave_group()


def lost_state(file: str, part: str = "") -> None:
    """Two processes; the second loads the weights and not the state of the optimizer."""
    if not part:
        for each in ("1", "2"):
            subprocess.run([sys.executable, __file__, "lost_state", file, each], check=True)
        return
    training = Training()
    if part == "2":
        training.model.load_state_dict(torch.load(file))
    for _ in range(120):
        training.step()
    torch.save(training.model.state_dict(), file)
    training.end()


def ranks_of(count: int, *arguments: str) -> None:
    """Runs `count` ranks of this program with these arguments, and ends."""
    variables = os.environ | {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
    started = [
        subprocess.Popen([sys.executable, __file__, *arguments], env=variables | {"RANK": n, "LOCAL_RANK": n})
        for n in map(str, range(count))
    ]
    sys.exit(max(abs(each.wait()) for each in started))


def ranks(store: str, *seeds: str) -> None:
    """Two ranks under DDP, whose batches have these seeds."""
    if "RANK" not in os.environ:
        ranks_of(2, "ranks", store, *seeds)
    number = int(os.environ["RANK"])
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=number, world_size=2)
    training = Training()
    training.model = nn.parallel.DistributedDataParallel(training.model)
    training.batches = Batches(int(seeds[number]), batch=4, length=LENGTH)
    for _ in range(200):
        training.optimizer.zero_grad()
        loss = loss_of(training.model, training.batches())
        loss.backward()
        training.optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    set_up()
    globals()[sys.argv[1]](*sys.argv[2:])
