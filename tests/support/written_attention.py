"""Stand-ins of attention that a package writes out in torch operations: Megatron-core's local spec and x-transformers'
Attend. Parameters and settings are those of the packages, the statements are fewer.

write(FOLDER) makes both packages; register(), called once they can be imported, has foreshock understand the statements
of the stand-ins as those of the packages.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

_ATTEND = '''
import functools
import torch
import written_attention as _package

class Attend(torch.nn.Module):
    flash = l2_distance = softclamp_logits = selective = add_zero_kv = head_learned_sink = cog_signed = False
    inverted_attention = False
    cope = pre_softmax_talking_heads = post_softmax_talking_heads = pre_scale_post_talking_heads = scale = None

    def __init__(self, causal=False, dropout=0.0, **settings):
        super().__init__()
        self.causal, self.attn_dropout = causal, torch.nn.Dropout(dropout)
        self.attn_fn = functools.partial(functools.partial(torch.nn.functional.softmax, dim=-1), dtype=torch.float32)
        vars(self).update(settings)

    def forward(self, q, k, v, mask=None, attn_bias=None, prev_attn=None, attn_delta=None, row_mask=None,
                flash_pack_seq_kwargs=None, causal=None):
        """The attention."""
        return _package.attend(self, q, k, v, mask, attn_bias, self.causal or causal)  # a comment
'''
_SOFTMAX = """
import torch
import written_attention as _package

class FusedScaleMaskSoftmax(torch.nn.Module):
    def __init__(self, attn_mask_type, mask_func, scale=None, window_size=None):
        super().__init__()
        self.attn_mask_type, self.mask_func = attn_mask_type, mask_func
        self.scale, self.window_size = scale, window_size

    def forward(self, input, mask, softmax_offset=None):
        return self.forward_torch_softmax(input, mask, softmax_offset)

    def is_kernel_available(self, mask, b, np, sq, sk):
        return False

    def forward_fused_softmax(self, input, mask):
        raise NotImplementedError

    def forward_torch_softmax(self, input, mask, softmax_offset=None):
        return _package.softmax(self, input, mask)
"""
_DOT_PRODUCT = '''
import torch
import written_attention as _package

class DotProductAttention(torch.nn.Module):
    softmax_offset = None

    def __init__(self, softmax, softmax_scale, dropout=0.0):
        super().__init__()
        self.scale_mask_softmax, self.softmax_scale = softmax, softmax_scale
        self.attention_dropout = torch.nn.Dropout(dropout)

    def forward(self, query, key, value, attention_mask, attn_mask_type=None, attention_bias=None,
                packed_seq_params=None):
        """Forward."""
        return _package.dot_product(self, query, key, value, attention_mask)
'''
FACTORS: dict[str, float] = {}  # of planted errors, by tensor: "out", "grad_query", "grad_key", "grad_value"


def write(folder: Path) -> None:
    for path, text in {
        "x_transformers/attend.py": _ATTEND,
        "megatron/core/fusions/fused_softmax.py": _SOFTMAX,
        "megatron/core/transformer/dot_product_attention.py": _DOT_PRODUCT,
    }.items():
        file = folder / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
        for parent in file.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()


def register() -> tuple[type, type, type]:
    """Returns Attend, DotProductAttention and FusedScaleMaskSoftmax."""
    from foreshock_torch import eager
    from foreshock_torch.sources import digest
    from megatron.core.fusions.fused_softmax import FusedScaleMaskSoftmax as Softmax
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from x_transformers.attend import Attend

    eager.ATTEND_FORMS.add(digest(Attend.forward))
    parts = (Softmax.forward, Softmax.forward_torch_softmax, Softmax.forward_fused_softmax)
    eager.MEGATRON_FORMS[digest(DotProductAttention.forward)] = tuple(digest(part) for part in parts)
    eager.MEGATRON_MASK_FUNCTIONS.add(digest(hide))
    return Attend, DotProductAttention, Softmax


def hide(scores: Any, mask: Any) -> Any:
    return scores.masked_fill(mask, -10000.0)


def changed(name: str, tensor: Any) -> Any:
    """`tensor`, or for names of gradients its gradient, with the planted error."""
    import torch

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * (FACTORS[name] if name == "out" else 1.0)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * (1.0 if name == "out" else FACTORS[name])

    return Wrong.apply(tensor) if name in FACTORS else tensor


def _weights_to_out(q: Any, k: Any, v: Any, scale: float, weights_of: Any) -> tuple[Any, Any, Any]:
    """The output of heads-first tensors with one kv-head a query head, the scores and the weights."""
    q, k, v = (changed(name, tensor) for name, tensor in (("grad_query", q), ("grad_key", k), ("grad_value", v)))
    scores = (q @ k.transpose(-1, -2)) * scale
    scores, weights = weights_of(scores)
    return changed("out", weights @ v), scores, weights


def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, bias: Any, causal: bool) -> tuple:
    import torch

    if module.flash:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v), None
    k, v = (tensor.repeat(1, q.shape[1] // k.shape[1], 1, 1) for tensor in (k, v))
    mask = mask[:, None, None] if mask is not None and mask.dim() == 2 else mask
    lowest = -torch.finfo(q.dtype).max

    def weights_of(scores: Any) -> tuple:
        scores = scores if bias is None else scores + bias
        scores = scores if mask is None else scores.masked_fill(~mask, lowest)
        if causal and q.shape[2] > 1:
            scores = scores.masked_fill(
                torch.ones(scores.shape[-2:], dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1), lowest
            )
        return scores, module.attn_fn(scores).to(q.dtype)

    scale = q.shape[-1] ** -0.5 if module.scale is None else module.scale
    out, scores, weights = _weights_to_out(q, k, v, scale, weights_of)
    if mask is not None:
        out = out.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    return out, types.SimpleNamespace(qk_similarities=None, pre_softmax_attn=scores, post_softmax_attn=weights)


def softmax(module: Any, scores: Any, mask: Any) -> Any:
    import torch

    scores = scores if module.scale is None else scores * module.scale
    if mask is None and module.attn_mask_type.name == "causal":
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores if mask is None else module.mask_func(scores, mask)).float().softmax(-1).to(scores.dtype)


def dot_product(module: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
    q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    out, *_ = _weights_to_out(
        q, k, v, module.softmax_scale, lambda scores: (scores, module.scale_mask_softmax(scores, mask))
    )
    return out.permute(2, 0, 1, 3).flatten(2)
