"""Makes trainings (arms) that differ in one thing: the attention kernel, the precision, or the initial weights.

All trainings with the same seed see the same batches in the same order. They use one thread, so that a repeated
training has the same bits.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "lab"), str(ROOT / "integrations" / "torch" / "demo")]

import stored_tensors  # noqa: E402
import train as demo  # noqa: E402

LEARNING_RATE = 2e-3
OTHER_INIT = 1_000_003  # an Arm.init far above all seeds, so that seed + init never equals another seed
DONE = "done"  # name of the file that marks an arm as complete; it has the result of train()


@dataclass(frozen=True)
class Arm:
    """The settings of one training. bf16 means autocast: fp32 weights, and a forward pass in bf16."""

    backend: SDPBackend = SDPBackend.FLASH_ATTENTION  # torch's fused kernel; MATH: its unfused attention
    precision: torch.dtype = torch.bfloat16
    init: int = 0  # added to the seed of the initial weights


ARMS = {
    "base": Arm(),
    "math": Arm(backend=SDPBackend.MATH),
    "fp32": Arm(precision=torch.float32),
    "fp32 math": Arm(backend=SDPBackend.MATH, precision=torch.float32),
    "init": Arm(init=OTHER_INIT),
    "again": Arm(),
}


@dataclass(frozen=True)
class Plan:
    """The settings that all trainings of a bench have in common."""

    size: demo.Size
    steps: int
    every: int  # steps between two checkpoints

    def checkpoints(self) -> range:
        """The steps of the checkpoints; 0 is before the first step."""
        return range(0, self.steps + 1, self.every)


@contextlib.contextmanager
def attention(arm: Arm) -> Iterator[None]:
    """Within the context, attention uses the arm's kernel and precision. The unfused kernel keeps scores and
    probabilities in bf16, as the baseline of arXiv 2405.02803 does; by default torch would compute them in fp32."""
    # In spite of its name, the setting also affects the CPU.
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    demo.Attention.precision = arm.precision
    try:
        with sdpa_kernel(arm.backend):
            yield
    finally:
        demo.Attention.precision = torch.bfloat16
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)


def path_of(folder: pathlib.Path, step: int) -> pathlib.Path:
    return folder / f"step-{step:06}.safetensors"


def save(model: torch.nn.Module, path: pathlib.Path) -> None:
    tensors = {name: stored_tensors.fp32(p.detach().numpy()) for name, p in model.named_parameters()}
    stored_tensors.write(path, tensors)


def train(arm: Arm, seed: int, plan: Plan, folder: pathlib.Path, progress: Callable[[float], None]) -> float:
    """Trains one arm and saves its checkpoints in `folder`; returns the mean loss of the last `plan.every` steps. A
    complete arm is not trained again; an incomplete one is trained from the beginning. `seed` determines the batches,
    and with arm.init the initial weights. `progress` is called with the share of the steps that are done."""
    if (folder / DONE).exists():
        return float((folder / DONE).read_text())
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    text, autocast = demo.Text(seed), arm.precision == torch.bfloat16
    torch.manual_seed(seed + arm.init)
    model = demo.Gpt(plan.size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    save(model, path_of(folder, 0))
    losses: list[float] = []
    with attention(arm):
        for step in range(1, plan.steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * demo.learning_rate(step / plan.steps)  # a factor: warm-up and cosine
            optimizer.zero_grad()
            loss = demo.loss_of(model, text.batch(plan.size), autocast)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            if step % plan.every == 0:
                save(model, path_of(folder, step))
                progress(step / plan.steps)
    last = sum(losses[-plan.every :]) / plan.every
    (folder / DONE).write_text(repr(last))
    return last
