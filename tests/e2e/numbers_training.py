"""Trains nothing much on attention inputs of known law; says which steps belonged to which case."""

import torch
from tiny_gpt import set_up, tell
from torch.nn import functional

set_up(7)
SCALES = [torch.nn.Parameter(torch.ones(())) for _ in range(3)]
OPTIMIZER = torch.optim.Adam(SCALES, lr=0.0)  # the law of the inputs stays what it is
STEP = 0
STEPS_OF: dict[str, list[int]] = {}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def train(name: str, steps: int, make, precision: torch.dtype = torch.bfloat16, loss_of=None, **attention) -> None:
    """`make()` gives fp32 query, key, value; they are rounded to `precision` on the way into attention."""
    global STEP
    STEPS_OF[name] = [STEP + 1, STEP + steps]
    for _ in range(steps):
        query, key, value = (
            (scale * x).to(precision).requires_grad_() for scale, x in zip(SCALES, make(), strict=True)
        )
        options = {option: given() if callable(given) else given for option, given in attention.items()}
        out = functional.scaled_dot_product_attention(query, key, value, **options)
        # A gradient of its own for every output, as a training has.
        (out * torch.randn_like(out)).float().sum().backward()
        OPTIMIZER.step()
        OPTIMIZER.zero_grad()
        STEP += 1


def same(*shape: int):
    return lambda: [normal(*shape) for _ in range(3)]


def flat():
    query, key, value = same(1, 2, 1024, 64)()
    return 3e-4 * query, key, value


def grouped():
    return normal(2, 8, 160, 32), normal(2, 2, 160, 32), normal(2, 2, 160, 32)


def window_mask(dtype: torch.dtype | None, queries: int = 160, keys: int = 160, empty: int = 0) -> torch.Tensor:
    """Row r sees itself and 40 positions to each side, its first `empty` rows nothing; bool, or added to the scores."""
    offset = torch.arange(queries)[:, None] - torch.arange(keys)[None, :]
    visible = (offset.abs() <= 40) & (torch.arange(queries)[:, None] >= empty)
    if dtype is None:
        return visible
    return normal(2, 1, queries, keys).to(dtype).masked_fill(~visible, float("-inf"))


def strided():
    """(batch, position, head, d) as a fused projection leaves it, a slice of a padded buffer."""
    packed = normal(2, 160, 3, 4, 40)
    return [packed[:, :, part, :, :24].transpose(1, 2) for part in range(3)]


class Strided:
    """Keeps the strides on the way to attention: to(bf16) of a dense fp32 tensor would pack it."""


# The largest first: the slots are made for it.
train("flat", 64, flat)
train("normal", 64, same(1, 2, 1024, 64))
train("causal", 16, same(2, 4, 160, 32), is_causal=True)
train("gqa", 16, grouped, is_causal=True, enable_gqa=True)
train("float_mask", 16, same(2, 4, 160, 32), attn_mask=lambda: window_mask(torch.bfloat16))
train("bool_mask", 16, same(2, 4, 160, 32), attn_mask=lambda: window_mask(None))
train("empty_rows", 16, same(2, 4, 160, 32), attn_mask=lambda: window_mask(None, empty=80))
train("strided", 16, strided, is_causal=True)
train("fp32", 16, same(2, 4, 160, 32), precision=torch.float32)
train("fp32_causal", 16, same(2, 4, 160, 32), precision=torch.float32, is_causal=True)
train("fp16", 16, same(2, 4, 160, 32), precision=torch.float16)
with torch.autocast("cpu", torch.bfloat16):
    train("autocast", 16, same(2, 4, 160, 32), precision=torch.float32)
tell(steps=STEPS_OF)
