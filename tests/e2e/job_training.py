"""One rank of a job over gloo: trains a tiny GPT under DDP, and may go wrong as it is told.

`job_training.py STEPS [crash RANK STEP]`: started by torchrun. That rank ends at that step, in the first attempt only.
STEPS 0: until the file STOP is there, and every rank has seen it.
`job_training.py STEPS spawn RANKS [die RANK STEP]`: spawns the ranks itself, without RANK in their environment; they do
not talk, so that one that dies stops nobody.
"""

import os
import pathlib
import sys

import torch
import torch.distributed as dist
from tiny_gpt import Batches, TinyGpt, leave_group, loss_of, set_up, tell
from torch import multiprocessing, nn


def goes_on(step: int, steps: int) -> bool:
    if steps:
        return step < steps
    stop = torch.tensor(float(pathlib.Path(os.environ["STOP"]).exists()))
    dist.all_reduce(stop)  # the ranks stop together
    return stop.item() == 0


def train(model: nn.Module, rank: int, steps: int, end_at: int) -> None:
    batch = Batches(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    while goes_on(step, steps):
        loss_of(model, batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == end_at:
            os._exit(3)
    tell(rank=rank, steps=step, attempt=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))


def under_torchrun(steps: int, crash: list[str]) -> None:
    set_up()
    # torch 2.13 restarts the ranks over the same store, where they find the addresses of the dead ones ("Gloo
    # connectFullMesh failed" in 5 of 12 restarts, without us too); so each attempt has its own part of it.
    store, rank, ranks = next(dist.rendezvous("env://"))
    store = dist.PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    model = nn.parallel.DistributedDataParallel(TinyGpt(layers=2))
    crashes = crash and int(crash[1]) == rank and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    train(model, rank, steps, int(crash[2]) if crashes else -1)
    leave_group()


def spawned(rank: int, ranks: int, steps: int, die: list[str]) -> None:
    set_up()
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    end_at = int(die[2]) if die and int(die[1]) == rank else -1
    train(TinyGpt(layers=2), rank, steps, end_at)
    if not die:
        leave_group()


def main(steps: int, rest: list[str]) -> None:
    if rest[:1] != ["spawn"]:
        return under_torchrun(steps, rest)
    ranks = int(rest[1])
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=spawned, args=(rank, ranks, steps, rest[2:])) for rank in range(ranks)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
