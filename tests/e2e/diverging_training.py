"""The trainings of test_diverging.py: `diverging_training.py PLANT SEED`. After 40 steps the learning rate grows by
half at every step until the loss is not finite; 12 more steps follow."""

import math
import sys

import torch
from planted_training import LAYERS, WrongKernel

from agent_view import wait_until_slots_are_free  # isort: skip
from tiny_gpt import Batches, TinyGpt, loss_of, set_up, tell  # isort: skip

STEADY, PAST, MOST = 40, 12, 200


def train(plant: str, seed: int) -> None:
    set_up(seed)
    kernel = WrongKernel(plant, all_layers=False)
    model, batches = TinyGpt(LAYERS), Batches(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    diverging, nan_at = None, None
    for step in range(1, MOST):
        if step > STEADY:
            optimizer.param_groups[0]["lr"] *= 1.5
        loss = loss_of(model, batches())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        if diverging is None and step > STEADY and not value < 6:
            diverging = step
        if nan_at is None and not math.isfinite(value):
            nan_at = step
        if nan_at is not None and step >= nan_at + PAST:
            break
        wait_until_slots_are_free()
    tell(calls=kernel.calls, diverging=diverging, nan_at=nan_at)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
