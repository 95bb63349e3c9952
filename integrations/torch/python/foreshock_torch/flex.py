"""Describes calls of torch's flex_attention, for seams.py (eager code) and flex_graph.py (compiled code).

`mask_mod` is evaluated once more, for all rows. Eager flex_attention does not read the blocks of a BlockMask, and
kernels read both. A call where the two disagree is not judged. `score_mod` may be any function. It is evaluated in fp64
on the scores of the call, and the call is described if the function adds numbers to them, or caps them by a tanh.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .calls import NO_MASK, SKIP_LAYOUT, SKIP_MASK, SKIP_TOO_LARGE, SKIP_UNKNOWN, Call, Given, Seam
from .tap import LAYOUTS

FLEX_READ = frozenset({"query", "key", "value", "score_mod", "block_mask", "scale"})
# Head counts show whether heads are shared. Kernel options choose how a kernel is launched.
FLEX_IGNORED = frozenset({"enable_gqa", "return_lse", "kernel_options", "return_aux"})
_MOST_SCORES = 1 << 24  # of a call with a score_mod: a matrix of all of them in fp32
_MOST_AT_ONCE = 1 << 20  # of them in fp64
# A function is known at each score from its values there and at this distance on both sides. They are computed in fp64,
# so differences of two have an error of a few 2^-52 of the largest. The tolerance of 2^-36 leaves room for a longer
# computation, but not for one of fp32. A slope that differs from that of the description by 2^-26 shows.
_STEP, _TOLERANCE = 2.0**-10, 2.0**-36
_FAR = 1e30  # a score at which a tanh is 1


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
    size = block_mask.BLOCK_SIZE

    def dense(blocks: Any) -> Any:
        whole = blocks.to_dense().bool().repeat_interleave(size[0], -2).repeat_interleave(size[1], -1)
        return whole[..., :queries, :keys]

    if bool((mask & ~dense(block_mask)).any()):
        return None
    if block_mask.full_kv_num_blocks is None:
        return mask
    # Kernels do not call `mask_mod` in these blocks.
    full = dense(mask_of([block_mask.full_kv_num_blocks, block_mask.full_kv_indices], size, block_mask.mask_mod))
    return None if bool((full & ~mask).any()) else mask


def mask_of(blocks: list[Any], size: tuple[int, int], mask_mod: Callable[..., Any]) -> Any:
    """The BlockMask of these tensors: counts and indices of blocks, then those of full blocks. Without them only its
    `mask_mod` may be read."""
    from types import SimpleNamespace

    from torch.nn.attention.flex_attention import BlockMask

    if not blocks:
        return SimpleNamespace(mask_mod=mask_mod)
    return BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=size, mask_mod=mask_mod)


def flex_forward(given: Given, result: Any, _: Any) -> Call | int:
    import torch

    query, key, value = (given[name] for name in ("query", "key", "value"))
    if torch._C._len_torch_function_stack() != 0:
        return SKIP_UNKNOWN  # a function mode of the training would see the calls in `mask_mod`
    lse = None
    if isinstance(result, tuple):
        lse = getattr(result[1], "lse", result[1] if torch.is_tensor(result[1]) else None)
    lse = None if lse is None else lse.detach()
    return described(query, key, value, output(result), lse, given["scale"], given["block_mask"], given["score_mod"])


def described(
    query: Any, key: Any, value: Any, out: Any, lse: Any, scale: float | None, block_mask: Any, score_mod: Any
) -> Call | int:
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4 or query.shape[0] != key.shape[0]:
        return SKIP_LAYOUT
    # Under autocast, products are computed in another precision than that of the query.
    if len({tensor.dtype for tensor in (query, key, value, out)}) != 1:
        return SKIP_UNKNOWN
    if score_mod is not None and query.shape[:3].numel() * key.shape[2] > _MOST_SCORES:
        return SKIP_TOO_LARGE
    mask = None if block_mask is None else _visible(block_mask, query, key)
    if mask is None and block_mask is not None:
        return SKIP_MASK
    call = Call(query, key, value, out, lse, scale, NO_MASK, LAYOUTS["bhnd"], mask)
    if score_mod is None:
        return call
    if query.device.type != "cpu":
        return SKIP_MASK  # to read its values would wait for the device
    added, cap = _added(call, score_mod, 0.0), 0.0
    if added is None and (cap := _cap(score_mod)):
        added = _added(call, score_mod, cap)
    return SKIP_MASK if added is None else call._replace(mask=added, soft_cap=cap)


def _over_places(score_mod: Callable[..., Any]) -> Callable[..., Any]:
    """`score_mod` for the scores (batch, heads, queries, keys) and the numbers of these: it sees scalars."""
    import torch

    for axis in (3, 2, 1, 0):
        score_mod = torch.vmap(score_mod, in_dims=(0, *(0 if n == axis else None for n in range(4))))
    return score_mod


def _cap(score_mod: Callable[..., Any]) -> float:
    """The soft cap of a function that has one, from its values far away at one place; else 0. _added() tests it."""
    import torch

    far = torch.full((1, 1, 1, 1), _FAR, dtype=torch.float64)
    top, low = (float(_evaluated(score_mod, scores, [torch.zeros(1, dtype=torch.long)] * 4)) for scores in (far, -far))
    cap = (top - low) / 2
    return cap if 0 < cap < _FAR / 2 else 0.0


def _evaluated(score_mod: Callable[..., Any], scores: Any, at: list[Any]) -> Any:
    import torch
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    with torch._C._EnableTorchFunction(), TransformGetItemToIndex():
        return _over_places(score_mod)(scores, *at).double()


def _added(call: Call, score_mod: Callable[..., Any], cap: float) -> Any:
    """The mask by which `score_mod`, after the soft cap `cap`, and the mask of the call change the scores of the call;
    None: no mask does that, also if the scores were a little different, as the gradients show them."""
    import torch

    query, key = call.query.detach(), call.key.detach()
    batch, heads, queries, width = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    scale = width**-0.5 if call.scale is None else call.scale
    shape = (batch, heads, queries, keys)
    visible = None if call.mask is None else call.mask.expand(shape)
    columns = key.repeat_interleave(heads // kv_heads, 1).double().transpose(-1, -2)
    numbers = [torch.arange(size, device=query.device) for size in shape]
    added = query.new_empty(shape, dtype=torch.float64 if query.dtype.itemsize == 8 else torch.float32)
    rows = max(1, _MOST_AT_ONCE // (batch * heads * keys))

    def capped(scores: Any) -> Any:
        return (scores / cap).tanh() * cap if cap else scores

    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        for first in range(0, queries, rows):
            piece = (slice(None), slice(None), slice(first, first + rows))
            at = [numbers[0], numbers[1], numbers[2][piece[2]], numbers[3]]
            scores = query[piece].double() @ columns * scale
            values = _evaluated(score_mod, scores, at)
            seen = values != -math.inf if visible is None else visible[piece] & (values != -math.inf)
            more = values - capped(scores)
            limit = _TOLERANCE * (1 + scores.abs() + more.abs())
            for step in (-_STEP, _STEP):
                moved = scores + step
                error = (_evaluated(score_mod, moved, at) - capped(moved) - more).abs()
                if bool((seen & ~(error <= limit)).any()):
                    return None
            added[piece] = more.masked_fill(~seen, -math.inf)
    return added


def output(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def rest(result: Any, replace: Callable[[Any], Any]) -> Any:
    """Replaces the log-sum-exp and the largest scores, where they are returned."""
    if not isinstance(result, tuple):
        return result
    aux = result[1]
    return result[0], type(aux)(*map(replace, aux)) if isinstance(aux, tuple) else replace(aux)


SEAMS = (
    Seam(
        "torch.nn.attention.flex_attention", "flex_attention", "flex_attention", False, flex_forward, FLEX_READ,
        FLEX_IGNORED, query="query", nests=True, keys_and_values=("key", "value"), output=output, rest=rest,
    ),
)  # fmt: skip
