"""The attention operations of torch's CUDA library, on the host and in fp64: the shapes, layouts and meanings that
torch documents for them, each beside its source. For the device of host_cuda.cpp, which must be loaded.

Importing it registers them.
"""

from collections.abc import Callable

import torch
from torch.library import Library

Tensor = torch.Tensor
NONE, TOP_LEFT, BOTTOM_RIGHT = 0, 1, 2  # FORESHOCK_CAUSAL_... of hook.h, and torch's CustomMaskType


def put(tensor: Tensor, device: int = 0) -> Tensor:
    return torch.ops.host_cuda.put(tensor, device)


def get(tensor: Tensor) -> Tensor:
    return torch.ops.host_cuda.get(tensor)


def to_fp64(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if t is None else get(t).double() for t in tensors]


def weights(
    q: Tensor, k: Tensor, scale: float | None, aligned: int, bias: Tensor | None, dropout: float, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(batch, head, position, d): softmax of the scores, its logarithm of sums, and what dropout multiplies it with."""
    queries, keys = q.shape[-2], k.shape[-2]
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if aligned != NONE:
        shift = keys - queries if aligned == BOTTOM_RIGHT else 0
        visible = torch.ones(queries, keys, dtype=torch.bool).tril(shift)
        scores = scores.masked_fill(~visible, float("-inf"))
    log_sum_exp = scores.logsumexp(-1)
    kept = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed)) >= dropout
    return (scores - log_sum_exp[..., None]).exp(), log_sum_exp, kept / (1 - dropout)


def grouped(q: Tensor, *tensors: Tensor) -> list[Tensor]:
    """One key head for each query head: head h reads h // group."""
    return [t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in tensors]


def forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, aligned: int = NONE, bias: Tensor | None = None,
    dropout: float = 0.0, seed: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(batch, head, position, d) in fp64: output and log-sum-exp, which knows nothing of dropout."""
    k, v = grouped(q, k, v)
    p, lse, kept = weights(q, k, scale, aligned, bias, dropout, seed)
    return (p * kept) @ v, lse


def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, scale: float | None = None, aligned: int = NONE,
    bias: Tensor | None = None, dropout: float = 0.0, seed: int = 0,
) -> list[Tensor]:  # fmt: skip
    """(batch, head, position, d) in fp64: gradients of query, key and value."""
    heads, scale = k.shape[1], q.shape[-1] ** -0.5 if scale is None else scale
    keys, values = grouped(q, k, v)
    p, _, kept = weights(q, keys, scale, aligned, bias, dropout, seed)
    inner = p * (g @ values.transpose(-1, -2) * kept - (g * out).sum(-1, keepdim=True)) * scale
    of_key, of_value = inner.transpose(-1, -2) @ q, (p * kept).transpose(-1, -2) @ g
    shape = (k.shape[0], heads, q.shape[1] // heads, k.shape[2], -1)
    return [inner @ keys, of_key.reshape(shape).sum(2), of_value.reshape(shape).sum(2)]


def swapped(*tensors: Tensor | None) -> list[Tensor | None]:
    """Heads first from positions first, or back."""
    return [None if t is None else t.transpose(1, 2) for t in tensors]


def new_seed(dropout: float) -> tuple[int, Tensor]:
    """Drawn as a device draws it: from the generator, only if it is needed."""
    seed = int(torch.randint(2**31, ()).item()) if dropout > 0 else 0
    return seed, put(torch.tensor(seed))


def padded(lse: Tensor, wanted: bool) -> Tensor:
    """The efficient kernels' rows of log-sum-exp end at a multiple of 32, with infinity behind the last query."""
    if not wanted:
        return torch.empty(*lse.shape[:-1], 0)
    return torch.nn.functional.pad(lse.float(), (0, -lse.shape[-1] % 32), value=float("inf"))


Results = tuple


def registered(name: str) -> bool:
    """Not every release has every operation."""
    return torch._C._dispatch_has_kernel(f"aten::{name}")


library = Library("aten", "IMPL")
torch.cuda._initialized = True  # `tensor.to(device)` would look for what only a CUDA build has


def on_device(body: Callable) -> Callable:
    if registered(body.__name__):
        library.impl(body.__name__, body, "CUDA")
    return body


def empty() -> Tensor:
    return put(torch.empty(0))


# scaled_dot_product_attention ends in these three: (batch, head, position, d), laid out as positions first.


@on_device
def _scaled_dot_product_flash_attention(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False, debug: bool = False, *,
    scale: float | None = None,
) -> Results:  # fmt: skip
    """Causal means lower right "for this particular op": torch/nn/attention/bias.py."""
    seed, state = new_seed(dropout_p)
    out, lse = forward(*to_fp64(q, k, v), scale, 2 * is_causal, None, dropout_p, seed)
    out = out.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2)
    return put(out), put(lse.float()), None, None, q.shape[2], k.shape[2], state, state, empty()


@on_device
def _scaled_dot_product_flash_attention_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, offsets_q: Tensor, offsets_k: Tensor,
    max_q: int, max_k: int, dropout_p: float, is_causal: bool, state: Tensor, unused: Tensor, *,
    scale: float | None = None,
) -> Results:  # fmt: skip
    grads = backward(*to_fp64(g, q, k, v, out), scale, 2 * is_causal, None, dropout_p, int(get(state)))
    return tuple(put(grad.to(q.dtype)) for grad in grads)


@on_device
def _scaled_dot_product_efficient_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, with_lse: bool, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None,
) -> Results:  # fmt: skip
    """Causal is CausalFromTopLeft: aten/src/ATen/native/transformers/cuda/attention.cu."""
    seed, state = new_seed(dropout_p)
    *tensors, bias = to_fp64(q, k, v, bias)
    out, lse = forward(*tensors, scale, int(is_causal), bias, dropout_p, seed)
    out = out.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2)
    return put(out), put(padded(lse, with_lse)), state, state


@on_device
def _scaled_dot_product_efficient_attention_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor, state: Tensor,
    unused: Tensor, dropout_p: float, wanted: list[bool], is_causal: bool = False, *, scale: float | None = None,
) -> Results:  # fmt: skip
    assert lse.shape[-1] % 32 == 0
    *tensors, bias = to_fp64(g, q, k, v, out, bias)
    grads = backward(*tensors, scale, int(is_causal), bias, dropout_p, int(get(state)))
    return *(put(grad.to(q.dtype)) for grad in grads), None


@on_device
def _scaled_dot_product_cudnn_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, with_lse: bool, dropout_p: float = 0.0,
    is_causal: bool = False, debug: bool = False, *, scale: float | None = None,
) -> Results:  # fmt: skip
    """set_causal_mask: top left. Sums of rows are (batch, head, query, 1): torch/_meta_registrations.py."""
    seed, state = new_seed(dropout_p)
    *tensors, bias = to_fp64(q, k, v, bias)
    out, lse = forward(*tensors, scale, int(is_causal), bias, dropout_p, seed)
    lse = lse.float()[..., None] if with_lse else torch.empty(0)
    return put(out.to(q.dtype)), put(lse), None, None, q.shape[2], k.shape[2], state, state, empty()


@on_device
def _scaled_dot_product_cudnn_attention_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, state: Tensor, unused: Tensor,
    bias: Tensor | None, offsets_q: Tensor, offsets_k: Tensor, max_q: int, max_k: int, dropout_p: float,
    is_causal: bool, *, scale: float | None = None,
) -> Results:  # fmt: skip
    *tensors, bias = to_fp64(g, q, k, v, out, bias)
    grads = backward(*tensors, scale, int(is_causal), bias, dropout_p, int(get(state)))
    return tuple(put(grad.to(q.dtype)) for grad in grads)


# What these call, and others directly. cuDNN's takes heads first, the others positions first.


@on_device
def _cudnn_attention_forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, offsets_q: Tensor | None, offsets_k: Tensor | None,
    max_q: int, max_k: int, with_lse: bool, dropout_p: float = 0.0, is_causal: bool = False, debug: bool = False, *,
    scale: float | None = None,
) -> Results:  # fmt: skip
    if offsets_q is not None:
        return put(torch.zeros(q.shape)), empty(), None, None, max_q, max_k, empty(), empty(), empty()
    return _scaled_dot_product_cudnn_attention(q, k, v, bias, with_lse, dropout_p, is_causal, debug, scale=scale)


@on_device
def _cudnn_attention_backward(*given: object, scale: float | None = None) -> Results:
    return _scaled_dot_product_cudnn_attention_backward(*given, scale=scale)


def parts(q: Tensor, k: Tensor, offsets_q: Tensor | None, offsets_k: Tensor | None) -> list[tuple]:
    """Where the queries and keys of each sequence are."""
    if offsets_q is None:
        return [(slice(None), slice(None))]
    q, k = ((get(t) if t.is_cuda else t).tolist() for t in (offsets_q, offsets_k))
    return [((0, slice(*q[n : n + 2])), (0, slice(*k[n : n + 2]))) for n in range(len(q) - 1)]


def by_parts(
    q: Tensor, k: Tensor, v: Tensor, offsets_q: Tensor | None, offsets_k: Tensor | None, bias: Tensor | None = None,
    **more: object,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """Positions first, (batch, ...) or packed (1, ...): output, and the sums of each part (batch, head, query)."""
    q, k, v, bias = to_fp64(q, k, v, bias)
    out, sums = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.double), []
    for a, b in parts(q, k, offsets_q, offsets_k):
        each = [t.unsqueeze(0) if t.dim() == 3 else t for t in (q[a], k[b], v[b])]
        one, lse = forward(*swapped(*each), bias=bias, **more)
        out[a] = one.transpose(1, 2).reshape(out[a].shape)
        sums.append(lse)
    return out, sums


def gradients_by_parts(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, offsets_q: Tensor | None, offsets_k: Tensor | None,
    bias: Tensor | None = None, **more: object,
) -> list[Tensor]:  # fmt: skip
    g, q, k, v, out, bias = to_fp64(g, q, k, v, out, bias)
    grads = [torch.zeros_like(t) for t in (q, k, v)]
    for a, b in parts(q, k, offsets_q, offsets_k):
        each = [t.unsqueeze(0) if t.dim() == 3 else t for t in (g[a], q[a], k[b], v[b], out[a])]
        for whole, at, one in zip(grads, (a, b, b), backward(*swapped(*each), bias=bias, **more), strict=True):
            whole[at] += one.transpose(1, 2).reshape(whole[at].shape)
    return grads


@on_device
def _efficient_attention_forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, offsets_q: Tensor | None, offsets_k: Tensor | None,
    max_q: int | None, max_k: int | None, dropout_p: float, custom_mask_type: int, with_lse: bool = False, *,
    scale: float | None = None, seqlen_k: Tensor | None = None, window_size: int | None = None,
) -> Results:  # fmt: skip
    """custom_mask_type: sdp_utils_cpp.h. Sums are (sequence, head, longest): torch/_meta_registrations.py."""
    seed, state = new_seed(dropout_p)
    if bias is not None and bias.dim() == 3:  # get_bias_4d_view() of mem_eff_attention/pytorch_utils.h
        bias = bias.unflatten(0, (q.shape[0], q.shape[2]))
    more = {"scale": scale, "aligned": custom_mask_type, "dropout": dropout_p, "seed": seed}
    out, sums = by_parts(q, k, v, offsets_q, offsets_k, bias, **more)
    longest = q.shape[1] if offsets_q is None else max_q
    lse = torch.cat([torch.nn.functional.pad(one, (0, longest - one.shape[-1]), value=torch.inf) for one in sums])
    return put(out.to(q.dtype)), put(padded(lse, with_lse)), state, state, longest, k.shape[1]


@on_device
def _efficient_attention_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, offsets_q: Tensor | None,
    offsets_k: Tensor | None, max_q: int, max_k: int, lse: Tensor, dropout_p: float, state: Tensor, unused: Tensor,
    custom_mask_type: int, bias_requires_grad: bool, *, scale: float | None = None, num_splits_key: int | None = None,
    window_size: int | None = None, shared_storage_dqdkdv: bool = False,
) -> Results:  # fmt: skip
    if bias is not None and bias.dim() == 3:
        bias = bias.unflatten(0, (q.shape[0], q.shape[2]))
    more = {"scale": scale, "aligned": custom_mask_type, "dropout": dropout_p, "seed": int(get(state))}
    grads = [grad.to(q.dtype) for grad in gradients_by_parts(g, q, k, v, out, offsets_q, offsets_k, bias, **more)]
    if shared_storage_dqdkdv:
        chunk = put(torch.stack(grads, -3))
        return *chunk.unbind(-3), empty()
    return *(put(grad) for grad in grads), empty()


def flat(out: Tensor, sums: list[Tensor], offsets_q: Tensor | None) -> Tensor:
    """flash-attn's sums: (batch, head, query), or (head, all queries) since 2.7: csrc/flash_attn/flash_api.cpp."""
    return sums[0].float() if offsets_q is None else torch.cat([one[0] for one in sums], -1).float()


@on_device
def _flash_attention_forward(
    q: Tensor, k: Tensor, v: Tensor, offsets_q: Tensor | None, offsets_k: Tensor | None, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, debug: bool, *, scale: float | None = None, **more: object,
) -> Results:  # fmt: skip
    """Causal is aligned at the bottom right: README of flash-attn, 2.1."""
    seed, state = new_seed(dropout_p)
    given = [t if offsets_q is None else t.unsqueeze(0) for t in (q, k, v)]
    out, sums = by_parts(*given, offsets_q, offsets_k, scale=scale, aligned=2 * is_causal, dropout=dropout_p, seed=seed)
    return put(out.to(q.dtype).reshape(q.shape)), put(flat(out, sums, offsets_q)), state, state, empty()


@on_device
def _flash_attention_forward_no_dropout_inplace(out: Tensor, *given: object, **more: object) -> Tensor:
    """The output is an argument, the sums are what it returns."""
    result, lse, *_ = _flash_attention_forward(*given, **more)
    out.copy_(result)
    return lse


@on_device
def _flash_attention_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, offsets_q: Tensor | None,
    offsets_k: Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool, state: Tensor,
    unused: Tensor, *, scale: float | None = None, **more: object,
) -> Results:  # fmt: skip
    given = [t if offsets_q is None else t.unsqueeze(0) for t in (g, q, k, v, out)]
    grads = gradients_by_parts(
        *given, offsets_q, offsets_k, scale=scale, aligned=2 * is_causal, dropout=dropout_p, seed=int(get(state))
    )
    return tuple(put(grad.to(q.dtype).reshape(t.shape)) for grad, t in zip(grads, (q, k, v), strict=True))
