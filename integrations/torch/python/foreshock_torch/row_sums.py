"""Computes what the check of dK and dV needs of a call whose function returns no log-sum-exp."""

from __future__ import annotations

from typing import Any

from .calls import BOTTOM_RIGHT, NO_MASK, Call
from .tap import LAYOUTS

_MOST_SCORES = 1 << 22  # of one piece, which bounds the memory
_ROUNDINGS = 4  # of one output: those of scores, weights and output, and one of sums


def _heads_first(tensor: Any, layout: int) -> Any:
    if layout == LAYOUTS["bhnd"]:
        return tensor
    return tensor.transpose(1, 2) if layout == LAYOUTS["bnhd"] else tensor.permute(1, 2, 0, 3)


def _back(tensor: Any, layout: int) -> Any:
    """The inverse of _heads_first()."""
    if layout == LAYOUTS["bhnd"]:
        return tensor
    return tensor.transpose(1, 2) if layout == LAYOUTS["bnhd"] else tensor.permute(2, 0, 1, 3)


def completed(call: Call) -> Call:
    """The call with the log-sum-exp of all rows: fp32, (batch, head, query). -Inf for a row that sees no key. From
    query, key and mask alone, so it is right whatever the function of the call has computed.

    The backward pass of attention that is written out does not read the output, but the check of dK does. So wrong
    rows of the output are replaced by right ones: an error of the output alone is not an error of dK.

    Scores of 16-bit formats are summed in fp32, where each product is exact; those of fp32 in fp64, as products of fp32
    may be computed in a smaller format on a device.
    """
    import torch

    query, key, value, out = (
        _heads_first(tensor.detach(), call.layout) for tensor in (call.query, call.key, call.value, call.out)
    )
    batch, heads, queries, _ = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    is_known = call.is_written_out and (not call.dropout or call.kept is not None)
    own = torch.empty_like(out).unflatten(1, (kv_heads, -1)) if is_known else None  # the right output
    wide = torch.float32 if query.dtype.itemsize < 4 else torch.float64
    scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
    mask, kept = (
        part if part is None else part.expand(batch, heads, queries, keys).unflatten(1, (kv_heads, -1))
        for part in (call.mask, call.kept)
    )
    query = query.unflatten(1, (kv_heads, -1))
    sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
    rows = max(1, min(queries, _MOST_SCORES // (heads * keys)))
    together = max(1, _MOST_SCORES // (heads * rows * keys)) if rows == queries else 1  # batch entries in one piece
    last_keys = torch.arange(queries, device=query.device) + (keys - queries if call.causal == BOTTOM_RIGHT else 0)
    all_keys = torch.arange(keys, device=query.device)
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        for b in range(0, batch, together):
            columns = key[b : b + together, :, None].to(wide).transpose(-1, -2)
            values = value[b : b + together, :, None].to(wide) if own is not None else None
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
                if own is not None:
                    weights = scores.softmax(-1)
                    if kept is not None:
                        weights.masked_fill_(kept[piece] == 0, 0.0).div_(1 - call.dropout)
                    own[piece] = weights.matmul(values).to(own.dtype)
    lse = sums.flatten(1, 2)
    if own is None:
        return call._replace(lse=lse)
    own = own.flatten(1, 2)
    right = own.double()
    # Scores, weights and output may each be rounded to the format; rounded scores have an error that grows with them.
    limit = _ROUNDINGS * torch.finfo(out.dtype).eps * (1 + lse.abs()) * right.norm(dim=-1)
    is_right = ((out.double() - right).norm(dim=-1) <= limit) | ~own.isfinite().all(-1)
    own = torch.where(is_right[..., None], out, own)
    return call._replace(lse=lse, out=_back(own, call.layout))
