"""Slices of whole calls, as the agent would have kept them; the reference and the noise floor by torch in fp64."""

import math

import torch
from stored_calls import NAMES, write_call

NAMES |= {torch.int32: "U32", torch.bool: "BOOL"}
FORWARD = "_scaled_dot_product_flash_attention_for_cpu"


def attend(q, k, v, scale, visible, mask):
    """[rows, d] over [keys, d], unfused, in the dtype of its inputs."""
    scores = (q @ k.T) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.to(scores.dtype)
    return torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1) @ v


def gradient(q, k, v, scale, visible, mask, dout):
    leaf = q.clone().requires_grad_()
    return torch.autograd.grad(attend(leaf, k, v, scale, visible, mask), leaf, dout)[0]


def slice_of_call(heads=4, queries=200, keys=200, d=64, dtype=torch.bfloat16, causal=True, mask=None, backward=False):
    """(arrays, facts) of 16 rows of all the heads, one kv-head, of a call of torch's own kernel with one batch."""
    torch.manual_seed(2)
    q, k, v, dout = (torch.randn(1, heads, n, d).to(dtype) for n in (queries, keys, keys, queries))
    k, v = k[:, :1].repeat(1, heads, 1, 1), v[:, :1].repeat(1, heads, 1, 1)  # grouped heads
    whole_mask = additive = None
    if mask == "bool":
        whole_mask = torch.rand(1, 1, queries, keys) < 0.7
        whole_mask[..., 0] = True
        additive = torch.zeros(whole_mask.shape, dtype=dtype).masked_fill(~whole_mask, -math.inf)  # as SDPA does
    elif mask == "float":
        whole_mask = additive = torch.randn(1, 1, queries, keys).to(dtype)
    scale, operations = 0.11, torch.ops.aten
    causal = causal and whole_mask is None
    out, lse = operations._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=additive, scale=scale
    )
    dq = operations._scaled_dot_product_flash_attention_for_cpu_backward(
        dout, q, k, v, out, lse, 0.0, causal, attn_mask=additive, scale=scale
    )[0]
    position = torch.linspace(0, queries - 1, 16 // heads).long()

    def rows(x):
        return x[0][:, position].flatten(0, 1).contiguous()

    limit = ((position + 1).clamp(max=keys) if causal else torch.full_like(position, keys)).repeat(heads)
    stored_keys = int(limit.max())
    arrays = {"q": rows(q), "k": k[0, 0, :stored_keys], "v": v[0, 0, :stored_keys], "out": rows(out)}
    arrays |= {"lse": rows(lse), "key_limit": limit.int(), "position": position.repeat(heads).int()}
    arrays["head"] = torch.arange(heads).repeat_interleave(len(position)).int()
    if whole_mask is not None:
        arrays["mask"] = rows(whole_mask.expand(1, heads, -1, -1))
    visible = torch.arange(stored_keys) < limit[:, None]
    inputs = (arrays["q"], arrays["k"], arrays["v"])
    wide = [x.double() for x in inputs]
    own_mask = arrays.get("mask")
    arrays["reference_out"] = attend(*wide, scale, visible, own_mask)
    reference, plain = arrays["reference_out"], attend(*inputs, scale, visible, own_mask)
    if backward:
        arrays |= {"dout": rows(dout), "dq": rows(dq)}
        reference = gradient(*wide, scale, visible, own_mask, arrays["dout"].double())
        plain = gradient(*inputs, scale, visible, own_mask, arrays["dout"])
        arrays["reference_dq"] = reference
    facts = {
        "format": "foreshock slice", "schema": "1", "reason": "control", "framework": "torch",
        "op": FORWARD + "_backward" * backward, "scale": scale, "heads_in_slice": heads,
        "causal": "top-left" if causal else "none", "query_length": queries, "key_length": keys,
        "figure.plain_error_norm": (plain.double() - reference).norm().item(),
    }  # fmt: skip
    return arrays, facts


def write_slice(path, arrays, facts):
    write_call(path, arrays, **facts)
    return str(path)
