"""Computes the log-sum-exp of a call whose function returns none, which the check of dK and dV needs."""

from __future__ import annotations

from typing import Any

from .providers import BOTTOM_RIGHT, NO_MASK, Call
from .tap import LAYOUTS

_MOST_SCORES = 1 << 22  # of one piece, which bounds the memory


def _heads_first(tensor: Any, layout: int) -> Any:
    if layout == LAYOUTS["bhnd"]:
        return tensor
    return tensor.transpose(1, 2) if layout == LAYOUTS["bnhd"] else tensor.permute(1, 2, 0, 3)


def log_sum_exp(call: Call) -> Any:
    """Log-sum-exp of all rows: fp32, (batch, head, query). -Inf for a row that sees no key. From query, key and mask
    alone, so it is right whatever the function of the call has computed. The cost is about that of the scores in it.

    Scores of 16-bit formats are summed in fp32, where each product is exact; those of fp32 in fp64, as products of fp32
    may be computed in a smaller format on a device.
    """
    import torch

    query, key = (_heads_first(tensor.detach(), call.layout) for tensor in (call.query, call.key))
    batch, heads, queries, _ = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    wide = torch.float32 if query.dtype.itemsize < 4 else torch.float64
    scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
    mask = None if call.mask is None else call.mask.expand(batch, heads, queries, keys).unflatten(1, (kv_heads, -1))
    query = query.unflatten(1, (kv_heads, -1))
    sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
    rows = max(1, min(queries, _MOST_SCORES // (heads * keys)))
    together = max(1, _MOST_SCORES // (heads * rows * keys)) if rows == queries else 1  # batch entries in one piece
    last_keys = torch.arange(queries, device=query.device) + (keys - queries if call.causal == BOTTOM_RIGHT else 0)
    all_keys = torch.arange(keys, device=query.device)
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        for b in range(0, batch, together):
            columns = key[b : b + together, :, None].to(wide).transpose(-1, -2)
            for r in range(0, queries, rows):
                piece = (slice(b, b + together), slice(None), slice(None), slice(r, r + rows))
                scores = query[piece].to(wide).matmul(columns).mul_(scale)
                if call.soft_cap:
                    scores.div_(call.soft_cap).tanh_().mul_(call.soft_cap)
                if mask is not None and mask.dtype is torch.bool:
                    scores.masked_fill_(~mask[piece], float("-inf"))
                elif mask is not None:
                    scores += mask[piece]
                if call.causal != NO_MASK:
                    scores.masked_fill_(all_keys > last_keys[r : r + rows, None], float("-inf"))
                sums[piece] = scores.logsumexp(-1).to(torch.float32)
    return sums.flatten(1, 2)
