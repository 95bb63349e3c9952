"""The trainings of test_providers.py: `provider_training.py CASE` trains a small model whose attention comes from
elsewhere than PyTorch's fused operations, and tells its digest.
"""

import itertools
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import attention_packages
import engine_package
import foreshock
import torch
from tiny_gpt import set_up, tell
from torch import nn
from torch.nn import functional

STEPS, BATCH, LENGTH, HEADS, WIDTH, LAYERS = 8, 2, 32, 4, 64, 2


def flash_attn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _layer: int) -> torch.Tensor:
    return attention_packages.FlashAttention.apply(q, k, v, True)


class Windowed(torch.autograd.Function):
    """flash-attn with a sliding window and, in layer 0, a soft cap."""

    @staticmethod
    def forward(ctx, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int) -> torch.Tensor:  # noqa: ANN001
        ctx.layer, ctx.rules = layer, (True, 7, -1, 2.0 if layer == 0 else 0.0, None)
        attention_packages.wrong = FAULT if layer == 1 else ""
        out, lse, _, state = torch.ops.flash_attn._flash_attn_forward(q, k, v, 0.0, 0.25, *ctx.rules, False)
        ctx.save_for_backward(q, k, v, out, lse, state)
        return out

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple:  # noqa: ANN001
        q, k, v, out, lse, state = ctx.saved_tensors
        grads = [torch.empty_like(t) for t in (q, k, v)]
        attention_packages.wrong = FAULT if ctx.layer == 1 else ""
        torch.ops.flash_attn._flash_attn_backward(
            grad, q, k, v, out, lse, *grads, 0.0, 0.25, *ctx.rules, False, state
        )  # fmt: skip
        return *grads, None


def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int) -> torch.Tensor:
    return Windowed.apply(q, k, v, layer)


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


def math_path(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int, dropout: float = 0.0) -> torch.Tensor:
    global wrong
    wrong = layer == 1 and FAULT
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, None, dropout, is_causal=True, scale=0.25)
        return out.transpose(1, 2)


def dropout(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int) -> torch.Tensor:
    return math_path(q, k, v, layer, 0.1)


wrong = ""  # the tensor that replaced_math() gets wrong


def replaced_math(q, k, v, mask=None, dropout_p=0.0, is_causal=False, kept=None, *, scale=None, enable_gqa=False):  # noqa: ANN001, ANN201, PLR0913
    """In place of torch's math path, in runs with a planted error."""
    gradients = [WrongByFivePercent.apply(t, 1.0, 1.05 if wrong == f"grad_{name}" else 1.0)
                 for name, t in (("query", q), ("key", k), ("value", v))]  # fmt: skip
    q, k, v = gradients
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(hidden, float("-inf"))
    weights = torch.ops.aten._safe_softmax(scores, -1)  # which only the math path calls
    weights = functional.dropout(weights, dropout_p)
    return WrongByFivePercent.apply(weights @ v, 1.05 if wrong == "out" else 1.0, 1.0), weights


class WrongByFivePercent(torch.autograd.Function):
    """Factors of the value and of the gradient."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, value: float, gradient: float) -> torch.Tensor:  # noqa: ANN001
        ctx.gradient = gradient
        return x * value

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple:  # noqa: ANN001
        return grad * ctx.gradient, None, None


class Engine(torch.autograd.Function):
    """As FusedAttnFunc of Transformer Engine."""

    @staticmethod
    def forward(ctx, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int) -> torch.Tensor:  # noqa: ANN001
        from transformer_engine.pytorch import attention

        offsets = torch.tensor([0, LENGTH, 2 * LENGTH], dtype=torch.int32)
        engine_package.ERROR["out"] = 1.05 if (FAULT, layer) == ("out", 1) else 1.0
        ctx.same = {"attn_scale": 0.25, "qkv_layout": "bshd_bshd_bshd", "attn_mask_type": "causal"}
        out, aux = attention.fused_attn_fwd(
            True, LENGTH, LENGTH, offsets, offsets, q, k, v, q.dtype, 1, **ctx.same, o_format="bshd"
        )
        ctx.save_for_backward(q, k, v, out, offsets, *aux)
        ctx.layer = layer
        return out

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple:  # noqa: ANN001
        from transformer_engine.pytorch import attention

        q, k, v, out, offsets, *aux = ctx.saved_tensors
        engine_package.ERROR["grad_query"] = 1.05 if (FAULT, ctx.layer) == ("grad_query", 1) else 1.0
        formats = {"o_format": "bshd", "do_format": "bshd", "dqkv_layout": "bshd_bshd_bshd"}
        grads = attention.fused_attn_bwd(
            LENGTH, LENGTH, offsets, offsets, q, k, v, out, grad, q.dtype, aux, 1, **ctx.same, **formats
        )
        return *grads[:3], None


def engine(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int) -> torch.Tensor:
    return Engine.apply(q, k, v, layer)


def wrong_product(layers: list[int], count: int = 0) -> object:
    """A kernel of bmm on the CPU that computes one tensor of layer 001 wrong. Backward products of weights or scores
    come in the order of the names here. Those of foreshock, in fp32 and fp64, are right and do not count."""

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        nonlocal count
        result = (a.float().unsqueeze(-1) * b.float().unsqueeze(1)).sum(2)
        if a.shape[-1] == LENGTH and a.dtype == torch.bfloat16:
            is_back = bool(layers) and layers[-1] == LAYERS
            name = ("grad_value", "grad_query", "grad_key")[count % 3] if is_back else "out"
            layer = LAYERS - 1 - count // 3 % LAYERS if is_back else layers[-1]
            count += is_back
            result *= 1.05 if (name, layer) == (FAULT, 1) else 1.0
        return result.to(a.dtype)

    return product


written_layers: list[int] = []  # the layer whose forward pass runs; at last LAYERS, for the backward pass


def written(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int) -> torch.Tensor:
    """Attention by hand: two query heads share a key."""
    written_layers.append(layer)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t[:, :2].repeat_interleave(2, 1) for t in (k, v))
    scores = (q @ k.transpose(-2, -1)) / 4
    scores = scores.masked_fill(torch.ones(LENGTH, LENGTH).triu(1) > 0, float("-inf"))
    out = scores.softmax(-1) @ v
    written_layers.append(layer + 1)
    return out.transpose(1, 2)


def sunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int) -> torch.Tensor:
    """As eager functions of transformers: layer 0 with a soft cap, as Gemma 2, layer 1 with sinks, as GPT-OSS."""
    written_layers.append(layer)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    mask = torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=q.dtype)
    mask = mask.masked_fill(torch.ones(LENGTH, LENGTH).triu(1) > 0, torch.finfo(q.dtype).min)
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.25
    if layer == 0:
        weights = functional.softmax(torch.tanh(scores / 2) * 2 + mask, dim=-1, dtype=torch.float32).to(q.dtype)
    else:
        sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=q.dtype).reshape(1, -1, 1, 1).expand(BATCH, -1, LENGTH, -1)
        scores = torch.cat([scores + mask, sinks], dim=-1)
        scores = scores - scores.max(dim=-1, keepdim=True).values
        weights = functional.softmax(scores, dim=-1, dtype=scores.dtype)[..., :-1]
    out = torch.matmul(functional.dropout(weights, 0.1), v)
    written_layers.append(layer + 1)
    return out.transpose(1, 2)


document = torch.tensor([[0] * 20 + [1] * 12, [0] * LENGTH])


def of_document(batch: torch.Tensor, _head: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return (i >= j) & (document[batch, i] == document[batch, j])


def plant_in_packed(sound=attention_packages.backward) -> None:  # noqa: ANN001
    """The backward kernel of layer 001 computes one gradient wrong. FAULT "neighbour": the queries of the second
    sequence see the keys of the first one too, in dK only."""
    layers = itertools.cycle(reversed(range(LAYERS)))

    def wrong(grad, q, k, v, scale, causal, cu_q, cu_k, *window) -> tuple:  # noqa: ANN001, ANN002
        names = ("grad_query", "grad_key", "grad_value")
        grads = list(sound(grad, q, k, v, scale, causal, cu_q, cu_k, *window))
        if next(layers) != 1:
            return tuple(grads)
        if FAULT == "neighbour":
            joined = cu_q[[0, 2, 3]]
            grads[1] = sound(grad, q, k, v, scale, causal, joined, joined, *window)[1]
        return tuple(g * (1.05 if name == FAULT else 1.0) for name, g in zip(names, grads, strict=True))

    attention_packages.backward = wrong


flex_parts: list = []  # torch's function and the mask


def prepare_flex() -> None:
    """torch refuses gradients on the CPU, and its own operators compute them all the same."""
    from torch.nn.attention import flex_attention as flex

    operators = sys.modules["torch._higher_order_ops.flex_attention"]  # its package has a function of this name
    flex._validate_device = lambda *_: None
    ahead = operators.math_attention
    back = operators.flex_attention_backward.py_kernels
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    layers_ahead, layers_back = itertools.cycle(range(LAYERS)), itertools.cycle(reversed(range(LAYERS)))

    def wrong_ahead(*given: object) -> tuple:
        out, *rest = ahead(*given)
        return out * (1.05 if (FAULT, next(layers_ahead)) == ("out", 1) else 1.0), *rest

    def wrong_back(*given: object, sound=back[key]) -> tuple:  # noqa: ANN001
        layer, names = next(layers_back), ("grad_query", "grad_key", "grad_value")
        *gradients, captured = sound(*given)
        return *(
            g * (1.05 if (FAULT, layer) == (n, 1) else 1.0) for n, g in zip(names, gradients, strict=True)
        ), captured

    if FAULT:
        operators.math_attention, back[key] = wrong_ahead, wrong_back
    mask = flex.create_block_mask(of_document, BATCH, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)
    flex_parts.extend((flex.flex_attention, mask))


def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _layer: int) -> torch.Tensor:
    attend, mask = flex_parts
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return attend(q, k[:, :2], v[:, :2], block_mask=mask, scale=0.25, enable_gqa=True).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, number: int, attend) -> None:  # noqa: ANN001
        super().__init__()
        self.number, self.attend = number, attend
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(BATCH, LENGTH, HEADS, -1).bfloat16() for t in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.out(self.attend(q, k, v, self.number).float().reshape(x.shape))


CASES = {
    "flash_attn": flash_attn, "window": window, "packed": packed, "tap": tap, "math_path": math_path,
    "dropout": dropout, "engine": engine, "written": written, "sunk": sunk, "flex": flex,
    "flex_compiled": flex,
}  # fmt: skip
FAULT = os.environ.get("PLANTED", "")  # a tensor of layer 001 that is wrong by 5 %; of "packed" also "neighbour"


if __name__ == "__main__":
    import hashlib

    set_up()
    folder = tempfile.TemporaryDirectory()
    engine_package.write(pathlib.Path(folder.name), "2.20.2")
    sys.path.insert(0, folder.name)
    attention_packages.define("flash_attn")
    if FAULT and sys.argv[1] == "packed":
        plant_in_packed()
    if FAULT and sys.argv[1] in ("math_path", "dropout"):
        replaced = torch.library.Library("aten", "IMPL")
        replaced.impl("_scaled_dot_product_attention_math", replaced_math, "AutogradCPU")
    if FAULT and sys.argv[1] in ("written", "sunk"):
        replaced = torch.library.Library("aten", "IMPL")
        replaced.impl("bmm", wrong_product(written_layers), "CPU")
    if CASES[sys.argv[1]] is flex:
        prepare_flex()
    model = nn.Sequential(*(Block(n, CASES[sys.argv[1]]) for n in range(LAYERS)))
    if sys.argv[1] == "flex_compiled":  # torch has no compiled kernel for gradients on the CPU
        model.compile(backend="aot_eager", fullgraph=True)
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
