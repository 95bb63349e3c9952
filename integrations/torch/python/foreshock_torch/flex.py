"""Describes eager calls of torch's flex_attention, for seams.py. Its `mask_mod` is evaluated once more, for all rows.

The mask of the function is what `mask_mod` returns: eager flex_attention does not read the blocks of a BlockMask, and
kernels read both. A call where the two disagree is not judged. A `score_mod` may be any function, so it is not either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .providers import NO_MASK, SKIP_LAYOUT, SKIP_MASK, SKIP_UNKNOWN, Call, Given
from .tap import LAYOUTS

FLEX_READ = frozenset({"query", "key", "value", "score_mod", "block_mask", "scale"})
# Head counts show whether heads are shared. Kernel options choose how a kernel is launched.
FLEX_IGNORED = frozenset({"enable_gqa", "return_lse", "kernel_options", "return_aux"})


def _visible(block_mask: Any, query: Any, key: Any) -> Any:
    """What `mask_mod` returns, bool of (batch, heads, queries, keys), expanded where it does not depend on the first
    two; None: it is not the mask of the blocks. `mask_mod` sees scalars, as in flex_attention."""
    import torch
    from torch.nn.attention.flex_attention import create_mask

    batch, heads, queries = query.shape[:3]
    keys = key.shape[2]
    # The caller has switched torch function modes off. vmap needs one of its own, by which a tensor can be an index.
    with torch._C._EnableTorchFunction():
        mask = create_mask(block_mask.mask_mod, batch, heads, queries, keys, device=query.device)
    if query.device.type != "cpu":
        return mask
    rows, columns = block_mask.BLOCK_SIZE
    blocks = block_mask.to_dense().bool().repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return None if bool((mask & ~blocks[..., :queries, :keys]).any()) else mask


def flex_forward(given: Given, result: Any, _: Any) -> Call | int:
    import torch

    query, key, value, block_mask = (given[name] for name in ("query", "key", "value", "block_mask"))
    out, lse = output(result), None
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4 or query.shape[0] != key.shape[0]:
        return SKIP_LAYOUT
    if given["score_mod"] is not None:
        return SKIP_MASK
    # Under autocast, products are computed in another precision than that of the query. A function mode of the training
    # would see the calls in `mask_mod`.
    if len({tensor.dtype for tensor in (query, key, value, out)}) != 1 or torch._C._len_torch_function_stack() != 0:
        return SKIP_UNKNOWN
    if isinstance(result, tuple):
        lse = getattr(result[1], "lse", result[1] if torch.is_tensor(result[1]) else None)
    mask = None if block_mask is None else _visible(block_mask, query, key)
    if mask is None and block_mask is not None:
        return SKIP_MASK
    lse = None if lse is None else lse.detach()
    return Call(query, key, value, out, lse, given["scale"], NO_MASK, LAYOUTS["bhnd"], mask)


def output(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def rest(result: Any, replace: Callable[[Any], Any]) -> Any:
    """Replaces the log-sum-exp and the largest scores, where they are returned."""
    if not isinstance(result, tuple):
        return result
    aux = result[1]
    return result[0], type(aux)(*map(replace, aux)) if isinstance(aux, tuple) else replace(aux)
