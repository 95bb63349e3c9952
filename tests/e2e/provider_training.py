"""The trainings of test_providers.py: `provider_training.py CASE` trains a small model whose attention comes from
elsewhere than PyTorch's fused operations, and tells its digest.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import attention_packages
import foreshock
import torch
from tiny_gpt import set_up, tell
from torch import nn
from torch.nn import functional

STEPS, BATCH, LENGTH, HEADS, WIDTH, LAYERS = 8, 2, 32, 4, 64, 2


def flash_attn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _layer: int) -> torch.Tensor:
    return attention_packages.FlashAttention.apply(q, k, v, True)


class Packed(torch.autograd.Function):
    """As flash_attn.flash_attn_varlen_func, of sequences of 20, 30 and 14 positions."""

    @staticmethod
    def forward(ctx, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:  # noqa: ANN001
        offsets = torch.tensor([0, 20, 50, 64], dtype=torch.int32)
        out, lse, _, state = torch.ops.flash_attn._flash_attn_varlen_forward(
            q, k, v, offsets, offsets, 30, 30, 0.0, 0.25, True
        )
        ctx.save_for_backward(q, k, v, out, lse, state, offsets)
        return out

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple:  # noqa: ANN001
        q, k, v, out, lse, state, offsets = ctx.saved_tensors
        grads = [torch.empty_like(t) for t in (q, k, v)]
        torch.ops.flash_attn._flash_attn_varlen_backward(
            grad, q, k, v, out, lse, *grads, offsets, offsets, 30, 30, 0.0, 0.25, True, -1, -1, 0.0, None, False, state
        )
        return tuple(grads)


def packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _layer: int) -> torch.Tensor:
    return Packed.apply(*(t.flatten(0, 1) for t in (q, k, v))).view(BATCH, LENGTH, HEADS, -1)


class Own(torch.autograd.Function):
    """A kernel of one's own, tapped both ways."""

    @staticmethod
    def forward(ctx, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int) -> torch.Tensor:  # noqa: ANN001
        out, lse = attention_packages.forward(q, k, v, 0.25, True, None, None)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.layer = layer
        foreshock.tap(q, k, v, out, lse, scale=0.25, causal="bottom_right", layer=layer, layout="bnhd")
        return out

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple:  # noqa: ANN001
        q, k, v, out, lse = ctx.saved_tensors
        grads = attention_packages.backward(grad, q, k, v, 0.25, True, None, None)
        foreshock.tap(
            q, k, v, out, lse, scale=0.25, causal=True, layer=ctx.layer, layout="bnhd", grad_out=grad,
            grad_query=grads[0],
        )  # fmt: skip
        return *grads, None


def tap(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int) -> torch.Tensor:
    return Own.apply(q, k, v, layer)


def math_path(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _layer: int) -> torch.Tensor:
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, number: int, attend) -> None:  # noqa: ANN001
        super().__init__()
        self.number, self.attend = number, attend
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(BATCH, LENGTH, HEADS, -1).bfloat16() for t in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.out(self.attend(q, k, v, self.number).float().reshape(x.shape))


CASES = {"flash_attn": flash_attn, "packed": packed, "tap": tap, "math_path": math_path}


if __name__ == "__main__":
    import hashlib

    set_up()
    attention_packages.define("flash_attn")
    model = nn.Sequential(*(Block(n, CASES[sys.argv[1]]) for n in range(LAYERS)))
    optimizer, digest = torch.optim.AdamW(model.parameters(), lr=1e-3), hashlib.sha256()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model(torch.randn(BATCH, LENGTH, WIDTH)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        digest.update(loss.detach().numpy().tobytes())
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    tell(digest=digest.hexdigest())
