"""Two artificial errors of attention, for `./dev demo --fault [grad_key]`. Both are added around torch's own kernels.

OutputFault moves the attention output (out) that the backward pass reads; the forward pass returns the right output.
Such an error harms a training if it correlates with the gradient of the output, because the backward pass subtracts
sum(gradient x out) for each query. If the error of this sum has the same sign at every step, the error moves the
queries in the same direction at every step. In a real training such errors build up over thousands of steps
(arXiv 2510.04212). GradKeyFault adds an error to the gradient of the keys.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor


def moved(out: Tensor, towards: Tensor, ulps: float, numbers: torch.Generator) -> Tensor:
    """Moves the bf16 values `out` by `ulps` spacings (ulps) on average, up where `towards` is positive, else down."""
    whole = math.floor(ulps)  # ulps - whole is the probability that a value moves by one more spacing
    count = whole + (torch.rand(out.shape, generator=numbers) < ulps - whole).to(torch.int16)
    away_from_zero = (out > 0) == (towards > 0)  # the bits of a value, read as an integer, grow with its magnitude
    bits = out.contiguous().view(torch.int16) + torch.where(away_from_zero, count, -count)
    # A value near zero stays, since subtracting `count` from its bits could change its sign.
    return torch.where(out.abs() > 2**-100, bits.view(torch.bfloat16), out)


class ErringAttention(torch.autograd.Function):
    """Causal attention on bf16 tensors (batch, heads, positions, head dimension) with as many kv-heads as query heads.

    The forward pass returns the right output. The backward pass computes with moved(output).
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, ulps: float, numbers: torch.Generator) -> Tensor:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.ulps, ctx.numbers = ulps, numbers
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        if ctx.ulps > 0:
            out = moved(out, grad, ctx.ulps, ctx.numbers)
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        return *backward(grad, q, k, v, out, lse, 0.0, True), None, None


class OutputFault:
    """Replaces scaled_dot_product_attention in one layer. A backward pass has the error if `is_on` was true when its
    forward pass ran."""

    def __init__(self, ulps: float, seed: int) -> None:
        self.ulps, self.is_on = ulps, False
        self.numbers = torch.Generator().manual_seed(seed)  # separate, so that the training draws the same numbers

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
        return ErringAttention.apply(q, k, v, self.ulps if self.is_on else 0.0, self.numbers)


BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"


class GradKeyFault:
    """torch's CPU backward kernel with a relative error of 5 % in dK of one layer, while `is_on`. dQ and dV are right.

    An object of this class takes the place of torch's kernel, which it calls. foreshock's hook calls the object, so the
    hook sees the wrong dK. The layer is found by counting calls: the backward calls of a step come from the last layer
    to the first.
    """

    def __init__(self, layer: int, layers: int, seed: int, error: float = 0.05) -> None:
        self.layers, self.error, self.is_on = layers, error, False
        self.position, self.calls = layers - 1 - layer, 0  # index of the layer's call in a step; calls so far
        self.numbers = torch.Generator().manual_seed(seed)  # separate, so that the training draws the same numbers
        self.original = torch.library.get_kernel(f"aten::{BACKWARD}", "CPU")
        self.library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a kernel is replaced
            self.library.impl(BACKWARD, self, "CPU", with_keyset=True)

    def __call__(self, keys: object, *arguments: object, **more: object) -> tuple[Tensor, ...]:
        grad_query, grad_key, grad_value = self.original.call_boxed(keys, *arguments, **more)
        if self.is_on and self.calls % self.layers == self.position:
            noise = torch.randn(grad_key.shape, generator=self.numbers).to(grad_key.dtype)
            grad_key *= 1 + self.error * noise
        self.calls += 1
        return grad_query, grad_key, grad_value
