"""Describes attention sinks: a learned score of each head that takes weight from all keys.

A sink is exactly one more key, whose components and value are 0 and to whose score the mask adds the sink. A call with
sinks is described with that key appended, and with the gradients that this key and this value have. Sums over all keys
are then conserved. Only sampled calls are described, so only they pay for the copies.
"""

from __future__ import annotations

from typing import Any

from .calls import Call

MOST_MASK_ELEMENTS = 1 << 27  # of the mask with the sinks, which is a copy; more: the call is not described


def once(tensor: Any) -> Any:
    """The tensor without the repetitions along axes that it was expanded to."""
    return tensor[tuple(slice(1) if stride == 0 else slice(None) for stride in tensor.stride())]


def _parts(call: Call) -> tuple[Any, Any]:
    """The mask and the scores of the sinks, (batch or 1, heads, queries, ...)."""
    heads, queries, keys = call.query.shape[1], call.query.shape[2], call.key.shape[2]
    mask = call.query.new_zeros(()) if call.mask is None else call.mask.detach()
    mask = mask.expand(*((1,) * (4 - mask.dim())), *mask.shape)
    mask, scores = once(mask), once(call.sink.scores)
    batch = max(mask.shape[0], scores.shape[0])
    return mask.expand(batch, heads, queries, keys), scores.expand(batch, heads, queries, 1)


def is_too_large(call: Call) -> bool:
    mask, scores = _parts(call)
    return mask.numel() + scores.numel() > MOST_MASK_ELEMENTS


def with_key(call: Call) -> Call:
    """The call with the key of its sinks, whose tensors are (batch, heads, position, d); itself without sinks."""
    import torch

    if call.sink is None:
        return call
    kept = call.kept
    if kept is not None:
        kept = torch.cat((kept, kept.new_ones(()).expand(*kept.shape[:-1], 1)), -1)
    key, value = (torch.nn.functional.pad(tensor.detach(), (0, 0, 0, 1)) for tensor in (call.key, call.value))
    return call._replace(key=key, value=value, mask=torch.cat(_parts(call), -1), kept=kept)


def with_gradients(call: Call) -> Call:
    """The call, which has its log-sum-exp and the key of its sinks, with the gradients of that key and value."""
    import torch

    if call.sink is None or call.gradients is None:
        return call
    grad_out, grad_query, grad_key, grad_value = call.gradients
    if grad_key is None or grad_value is None:
        return call._replace(gradients=(grad_out, grad_query, None, None))
    wide = torch.float32 if call.query.dtype.itemsize < 8 else torch.float64
    grad, weights = grad_out.to(wide), call.sink.weights.to(wide)
    # The value is 0, and so is the gradient of a weight: dS = weight * (0 - delta). Dropout, as it is described, keeps
    # the weight of the sink.
    of_scores = -weights * (grad * call.out.to(wide)).sum(-1, keepdim=True)
    scale = call.query.shape[-1] ** -0.5 if call.scale is None else call.scale
    kv_heads = call.key.shape[1]

    def appended(gradient: Any, of_rows: Any) -> Any:
        """`gradient` with the sum of `of_rows` over the rows of all heads that share a key."""
        total = of_rows.unflatten(1, (kv_heads, -1)).sum((2, 3))[:, :, None]
        return torch.cat((gradient, total.to(gradient.dtype)), 2)

    of_key = appended(grad_key, of_scores * call.query.detach().to(wide) * scale)
    of_value = appended(grad_value, weights / (1 - call.dropout) * grad)
    return call._replace(gradients=(grad_out, grad_query, of_key, of_value))
