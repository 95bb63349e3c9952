"""The attention operations of torch's CUDA library, on the host and in fp64: the shapes, layouts and meanings that
torch documents for them, each beside its source. For the device of host_cuda.cpp, which must be loaded.

Importing it registers them.
"""

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


def edges(offsets_q: Tensor, offsets_k: Tensor) -> list[tuple[slice, slice]]:
    q, k = (get(t).tolist() for t in (offsets_q, offsets_k))
    return [(slice(*q[n : n + 2]), slice(*k[n : n + 2])) for n in range(len(q) - 1)]


library = Library("aten", "IMPL")


def on_device(body):
    library.impl(body.__name__.replace("__", "."), body, "CUDA")
    return body


# scaled_dot_product_attention ends in these three: (batch, head, position, d), results laid out as positions first.


@on_device
def _scaled_dot_product_flash_attention(q, k, v, dropout_p=0.0, is_causal=False, debug=False, *, scale=None):
    # "Flash accepts causal = True and for this particular op it means lower right": torch/nn/attention/bias.py.
    seed, state = new_seed(dropout_p)
    aligned = BOTTOM_RIGHT if is_causal else NONE
    out, lse = forward(*to_fp64(q, k, v), scale, aligned, None, dropout_p, seed)
    out = out.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2)
    return put(out), put(lse.float()), None, None, q.shape[2], k.shape[2], state, state, put(torch.empty(0))


@on_device
def _scaled_dot_product_flash_attention_backward(
    g, q, k, v, out, lse, offsets_q, offsets_k, max_q, max_k, dropout_p, is_causal, state, unused, *, scale=None
):  # fmt: skip
    aligned = BOTTOM_RIGHT if is_causal else NONE
    grads = backward(*to_fp64(g, q, k, v, out), scale, aligned, None, dropout_p, int(get(state)))
    return tuple(put(grad.to(q.dtype)) for grad in grads)
