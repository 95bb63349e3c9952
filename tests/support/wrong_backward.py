"""torch's attention kernel with wrong gradients in some layers, below the monitor's hook."""

import warnings

import torch

OP = "_scaled_dot_product_flash_attention_for_cpu_backward"
QUERY, KEY, VALUE = range(3)


class WrongBackward:
    """Of a model with `layers` layers; `wrong`: layer -> the gradient (QUERY, KEY, VALUE) that is 5 % too large. The
    calls of a backward pass come in the reverse order."""

    def __init__(self, layers: int, wrong: dict[int, int]) -> None:
        self.calls, self.layers, self.wrong = 0, layers, wrong
        self.original = torch.library.get_kernel(f"aten::{OP}", "CPU")
        self.library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced
            self.library.impl(OP, self, "CPU", with_keyset=True)

    def __call__(self, keys: object, *arguments: object, **more: object) -> tuple[torch.Tensor, ...]:
        gradients = self.original.call_boxed(keys, *arguments, **more)
        layer = self.layers - 1 - self.calls % self.layers
        self.calls += 1
        if layer in self.wrong:
            gradients[self.wrong[layer]].mul_(1.05)
        return gradients
