"""Trainings of test_report_pictures.py: `report_training.py PLANT STEPS FROM_STEP`. All are well before FROM_STEP."""

import sys

from planted_training import WrongKernel, set_up

import torch  # isort: skip
from agent_view import wait_until_slots_are_free  # isort: skip
from tiny_gpt import VOCABULARY, Batches, TinyGpt, loss_of  # isort: skip

BATCHES = 3  # bad ones in a row: fewer are no spike by the rule


def train(plant: str, steps: int, from_step: int) -> None:
    set_up()
    kernel = WrongKernel("nothing", all_layers=False)
    model, batches = TinyGpt(), Batches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        tokens = batches()
        if plant == "attention" and step == from_step:
            kernel.plant = "head"
        if plant == "rate" and step == from_step:
            optimizer.param_groups[0]["lr"] = 1.0
        if plant == "batch" and from_step <= step < from_step + BATCHES:
            tokens = torch.randint(VOCABULARY, tokens.shape, generator=batches.generator)
        loss_of(model, tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        wait_until_slots_are_free()


if __name__ == "__main__":
    train(sys.argv[1], *map(int, sys.argv[2:]))
