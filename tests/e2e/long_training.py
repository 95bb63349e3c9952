"""Attention over many keys in a process that trains: few queries, so that it is quick."""

import sys

import torch
from agent_view import wait_until_judged
from tiny_gpt import set_up, tell
from torch.nn import functional

KEYS = [int(keys) for keys in sys.argv[1].split(",")]
# The slots hold one slice over 131072 keys, so a step's two passes take turns, and backward ones are by rows or by key
# positions: all three come within 24.
STEPS = 24

set_up(5)
scales = [torch.nn.Parameter(torch.ones(())) for _ in range(3)]
optimizer = torch.optim.Adam(scales, lr=0.0)
done = 0
# The first call decides on the slots.
for keys in sorted(KEYS, reverse=True):
    inputs = [torch.randn(1, 2, length, 64).bfloat16() for length in (64, keys, keys)]
    for _ in range(STEPS):
        out = functional.scaled_dot_product_attention(*(x * s.bfloat16() for x, s in zip(inputs, scales, strict=True)))
        out.backward(torch.randn_like(out))
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        wait_until_judged(done)  # a slice of this size takes most of the slots
tell(steps=done)
