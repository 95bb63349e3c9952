"""The trainings of test_planted.py: `planted_training.py PLANT MICRO_BATCHES STEPS [TENSORS]` trains on a kernel of
attention that errs in the second layer. The wrong kernel stands where torch's own does, below the monitor's hook. With
TENSORS the model has five layers, all of them wrong, and so many small tensors besides.
"""

import pathlib
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
from agent_view import wait_until_slots_are_free
from tiny_gpt import Batches, TinyGpt, loss_of, set_up, tell

LAYERS, GUILTY, LAYERS_OF_MANY = 3, 1, 5
OP = "_scaled_dot_product_flash_attention_for_cpu"
BIASES = {"bias": 0.3, "half": 0.5}  # ulp
LOST_KEY = 5  # the position whose dK is left out


def head_error(out: torch.Tensor) -> None:
    out[:, 2] *= 1 + 2**-6


def bias(out: torch.Tensor, numbers: torch.Generator, share: float) -> None:
    """So large a share of the elements moves away from zero by one unit in the last place."""
    moved = torch.rand(out.shape, generator=numbers) < share
    bits = out.view(torch.int16)
    bits += moved.to(torch.int16)


class WrongKernel:
    """torch's kernel, and what `plant` does to its results in the guilty layer; calls come in the layers' order, those
    of the backward in the reverse order."""

    def __init__(self, plant: str, all_layers: bool) -> None:
        self.plant, self.calls, self.backward_calls, self.all_layers = plant, 0, 0, all_layers
        self.numbers = torch.Generator().manual_seed(7)  # of its own: the training draws none of these
        self.original = torch.library.get_kernel(f"aten::{OP}", "CPU")
        self.original_backward = torch.library.get_kernel(f"aten::{OP}_backward", "CPU")
        self.library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced
            self.library.impl(OP, self, "CPU", with_keyset=True)
            self.library.impl(f"{OP}_backward", self.backward, "CPU", with_keyset=True)

    def backward(self, keys: object, *arguments: object, **more: object) -> tuple[torch.Tensor, ...]:
        gradients = self.original_backward.call_boxed(keys, *arguments, **more)
        guilty = self.backward_calls % LAYERS == LAYERS - 1 - GUILTY
        self.backward_calls += 1
        if guilty and self.plant == "key":
            gradients[1][:, :, LOST_KEY] = 0
        if guilty and self.plant == "keys":
            gradients[1].mul_(1.25)
        if guilty and self.plant == "NaN" and self.backward_calls > 20 * LAYERS:
            gradients[2][:, :, LOST_KEY, 0] = torch.nan
        return gradients

    def __call__(self, keys: object, *arguments: object, **more: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, log_sum_exp = self.original.call_boxed(keys, *arguments, **more)
        guilty = self.all_layers or self.calls % LAYERS == GUILTY
        self.calls += 1
        if guilty and self.plant == "head":
            head_error(out)
        if guilty and self.plant in BIASES:
            bias(out, self.numbers, BIASES[self.plant])
        return out, log_sum_exp


def train(plant: str, micro: int, steps: int, tensors: int = 0) -> None:
    set_up()
    kernel = WrongKernel(plant, all_layers=tensors > 0)
    model, batches = (
        TinyGpt(LAYERS_OF_MANY if tensors else LAYERS),
        Batches(length=192 if plant in ("key", "NaN") else 48),
    )
    # Ahead of the layers in the model's order, as the experts of a model may be.
    experts = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(2, 3)) for _ in range(tensors))
    if tensors:
        model._modules = {"experts": experts, **model._modules}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        for _ in range(micro):
            (loss_of(model, batches()) / micro).backward()
        for expert in experts:
            expert.grad = expert.detach()
        if plant == "NaN":  # is planted at every step, so the weights stay finite
            for parameter in model.parameters():
                parameter.grad.nan_to_num_()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        wait_until_slots_are_free()
    tell(calls=kernel.calls)


if __name__ == "__main__":
    train(sys.argv[1], *map(int, sys.argv[2:]))
