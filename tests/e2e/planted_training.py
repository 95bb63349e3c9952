"""The trainings of test_planted.py: `planted_training.py PLANT MICRO_BATCHES STEPS` trains on a kernel of attention
that errs in the second layer. The wrong kernel stands where torch's own does, below the monitor's hook.
"""

import pathlib
import sys
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
from tiny_gpt import Batches, TinyGpt, loss_of, set_up, tell

LAYERS, GUILTY = 3, 1
OP = "_scaled_dot_product_flash_attention_for_cpu"


def head_error(out: torch.Tensor) -> None:
    out[:, 2] *= 1 + 2**-6


def bias(out: torch.Tensor, numbers: torch.Generator) -> None:
    """Three elements in ten move away from zero by one unit in the last place."""
    moved = torch.rand(out.shape, generator=numbers) < 0.3
    bits = out.view(torch.int16)
    bits += moved.to(torch.int16)


class WrongKernel:
    """torch's kernel, and what `plant` does to the output in the guilty layer; calls come in the layers' order."""

    def __init__(self, plant: str) -> None:
        self.plant, self.calls = plant, 0
        self.numbers = torch.Generator().manual_seed(7)  # of its own: the training draws none of these
        self.original = torch.library.get_kernel(f"aten::{OP}", "CPU")
        self.library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced
            self.library.impl(OP, self, "CPU", with_keyset=True)

    def __call__(self, keys: object, *arguments: object, **more: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, log_sum_exp = self.original.call_boxed(keys, *arguments, **more)
        guilty = self.calls % LAYERS == GUILTY
        self.calls += 1
        if guilty and self.plant == "head":
            head_error(out)
        if guilty and self.plant == "bias":
            bias(out, self.numbers)
        return out, log_sum_exp


def train(plant: str, micro: int, steps: int) -> None:
    set_up()
    kernel = WrongKernel(plant)
    model, batches = TinyGpt(LAYERS), Batches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        for _ in range(micro):
            (loss_of(model, batches()) / micro).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)  # the agent empties the ring meanwhile
    tell(calls=kernel.calls)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
