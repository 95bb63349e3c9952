"""Attention functions with one planted error each, called as scaled_dot_product_attention is."""

import math

import torch


def _scores(q, k, scale):
    return (q.float() @ k.float().transpose(-1, -2)) * scale


def _hidden(scores, is_causal, attn_mask, shift=0):
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores[0, 0], dtype=torch.bool).tril(shift), -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return scores


def _attention(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, shift=0):
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    p = torch.softmax(_hidden(_scores(q, k, scale or 1 / math.sqrt(q.shape[-1])), is_causal, attn_mask, shift), -1)
    return (p @ v.float()).to(q.dtype)


def right(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    return _attention(q, k, v, attn_mask, is_causal, scale, enable_gqa)


def causal_off_by_one(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    return _attention(q, k, v, attn_mask, is_causal, scale, enable_gqa, shift=1)


def wrong_scale(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """One over the root of the padded head dimension: right for multiples of 32."""
    padded = -(-q.shape[-1] // 32) * 32
    return _attention(q, k, v, attn_mask, is_causal, 1 / math.sqrt(padded), enable_gqa)


def dropped_block(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Loses the last, incomplete block of 64 keys."""
    whole = max(k.shape[-2] // 64 * 64, 64)
    mask = None if attn_mask is None else attn_mask[:, :whole]
    return _attention(q, k[..., :whole, :], v[..., :whole, :], mask, is_causal, scale, enable_gqa)


def low_precision_state(q, k, v, scale=None):
    """Flash attention whose running maximum, sum and output are kept in the format of the inputs."""
    scale, kind = scale or 1 / math.sqrt(q.shape[-1]), q.dtype
    out = torch.zeros_like(q)
    maximum = torch.full_like(q[..., :1], -math.inf)
    total = torch.zeros_like(maximum)
    for first in range(0, k.shape[-2], 16):
        scores = _scores(q, k[..., first : first + 16, :], scale)
        raised = torch.maximum(maximum, scores.amax(-1, keepdim=True).to(kind))
        weight = torch.exp(maximum.float() - raised.float()).to(kind)
        p = torch.exp(scores - raised.float()).to(kind)
        total = (weight * total + p.sum(-1, keepdim=True)).to(kind)
        out = (weight * out + p @ v[..., first : first + 16, :]).to(kind)
        maximum = raised
    return out / total


class _WrongGroup(torch.autograd.Function):
    """The right forward; the gradient of each kv-head's keys goes to its neighbour."""

    @staticmethod
    def forward(ctx, q, k, v, keywords):
        ctx.keywords = keywords
        ctx.save_for_backward(q, k, v)
        return _attention(q, k, v, **keywords)

    @staticmethod
    def backward(ctx, grad_out):
        leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            out = _attention(*leaves, **ctx.keywords)
        dq, dk, dv = torch.autograd.grad(out, leaves, grad_out)
        return dq, dk.roll(1, dims=1) if ctx.keywords.get("enable_gqa") else dk, dv, None


def wrong_group(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    keywords = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    return _WrongGroup.apply(q, k, v, keywords)


class Race:
    """The order of the keys, and so of the sums, changes from call to call; every answer is a good one."""

    __name__ = "race"

    def __init__(self):
        self.calls = 0

    def __call__(self, q, k, v, scale=None):
        self.calls += 1
        order = torch.randperm(k.shape[-2], generator=torch.Generator().manual_seed(self.calls))
        return _attention(q, k[..., order, :], v[..., order, :], scale=scale)


race = Race()
