"""Attention on inputs of known law, in a process that trains; tells which steps were which case."""

from collections.abc import Callable

import torch
from agent_view import wait_until_judged
from tiny_gpt import set_up, tell
from torch.nn import functional

Inputs = list[torch.Tensor]

set_up(7)
# They make the process one that trains. They stay 1: the law of the inputs is not to move.
scales = [torch.nn.Parameter(torch.ones(())) for _ in range(3)]
optimizer = torch.optim.Adam(scales, lr=0.0)
steps_of: dict[str, list[int]] = {}
done = 0


def train(
    name: str, steps: int, make: Callable[[], Inputs], precision: torch.dtype = torch.bfloat16, **options: object
) -> None:
    """`make` gives query, key, value; scaled and in `precision` they go into attention, one call a step."""
    global done
    steps_of[name] = [done + 1, done + steps]
    for _ in range(steps):
        inputs = [(x * scale).to(precision) for x, scale in zip(make(), scales, strict=True)]
        given = {option: value() if callable(value) else value for option, value in options.items()}
        out = functional.scaled_dot_product_attention(*inputs, **given)
        out.backward(torch.randn_like(out))
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        if done % 16 == 0:
            wait_until_judged(done)  # every slice finds a free slot, however busy the machine is


def like(*shape: int) -> Callable[[], Inputs]:
    return lambda: [torch.randn(shape) for _ in range(3)]


def flat() -> Inputs:
    query, key, value = like(1, 2, 1024, 64)()
    return [3e-4 * query, key, value]


def grouped() -> Inputs:
    return [torch.randn(2, heads, 160, 32) for heads in (8, 2, 2)]


def strided() -> Inputs:
    """Parts of one padded projection, (batch, position, part, head, d) in memory."""
    packed = torch.randn(2, 160, 3, 4, 40)
    return [packed[:, :, part, :, :24].transpose(1, 2) for part in range(3)]


def visible(empty: int = 0) -> torch.Tensor:
    """Row r sees the keys at most 40 from it; the first `empty` rows see none."""
    row, column = torch.arange(160)[:, None], torch.arange(160)[None, :]
    return ((row - column).abs() <= 40) & (row >= empty)


def added_mask() -> torch.Tensor:
    return (0.5 * torch.randn(2, 1, 160, 160)).masked_fill(~visible(), float("-inf")).bfloat16()


small = like(2, 4, 160, 32)
# The largest first: the slots are made for it. One step more, since nothing is sampled in the first.
train("flat", 65, flat)
train("normal", 64, like(1, 2, 1024, 64))
train("non_causal", 16, small)
train("causal", 16, small, is_causal=True)
train("gqa", 16, grouped, enable_gqa=True)
train("float_mask", 16, small, attn_mask=added_mask)
train("bool_mask", 16, small, attn_mask=visible)
train("empty_rows", 16, small, attn_mask=lambda: visible(empty=80))
train("strided", 16, strided, is_causal=True)
train("fp32", 16, small, torch.float32)
train("fp16", 16, small, torch.float16)
with torch.autocast("cpu", torch.bfloat16):
    train("autocast", 16, small, torch.float32)
wait_until_judged(done)
tell(steps=steps_of, kernel=torch.backends.cpu.get_cpu_capability())
