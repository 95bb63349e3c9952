"""Trainings in which the gradient of one parameter, or of all, is not the sum of its contributions; and sound ones.

`conserved_training.py KIND RANKS STORE [bf16]`: STORE is a file for the process group of several ranks.
"""

import contextlib
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
import torch.distributed as dist
from tiny_gpt import VOCABULARY, TinyGpt, leave_group, set_up, tell
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

STEPS, PASSES = 7, 3
BAD = "blocks.1.up.weight"
BY_HAND = ("by_hand", "left_out", "summed_twice", "divided_twice")  # the training sums the gradients itself


def main(kind: str, rank: int, ranks: int, store: str, precision: torch.dtype) -> None:
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    model = TinyGpt(layers=2, width=32).to(precision)
    bad = dict(model.named_parameters())[BAD]
    wrapped = model
    if ranks > 1 and kind not in BY_HAND:
        if kind == "ignored":
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, [BAD])
        wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank + 1)
    for _ in range(STEPS):
        for number in range(PASSES):
            is_last = number == PASSES - 1
            tokens = torch.randint(VOCABULARY, (2, 17), generator=generator)
            waits = wrapped is not model and not is_last
            with wrapped.no_sync() if waits else contextlib.nullcontext():
                logits = wrapped(tokens[:, :-1]).float()
                loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                (loss / PASSES).backward()
            if kind == "clears_one" and not is_last:
                bad.grad.zero_()
            if kind == "clears_all" and not is_last:
                optimizer.zero_grad()
        if kind in BY_HAND and ranks > 1:
            for name, parameter in model.named_parameters():
                if kind == "left_out" and name == BAD:
                    continue
                dist.all_reduce(parameter.grad)
                if kind == "summed_twice" and name == BAD:
                    dist.all_reduce(parameter.grad)
                parameter.grad /= ranks
            if kind == "divided_twice":
                bad.grad /= ranks
        if kind == "drops":
            bad.grad.zero_()
        if kind == "doubles":
            bad.grad *= 2
        if kind == "masks":  # sound: the training wants it so
            bad.grad[:7] = 0
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if kind == "keeps_one":
            for parameter in model.parameters():
                parameter.grad = parameter.grad if parameter is bad else None
        elif kind != "keeps_all":
            optimizer.zero_grad()
    tell(sum=sum(float(p.double().sum()) for p in model.parameters()))
    if ranks > 1:
        leave_group()


if __name__ == "__main__":
    kind, ranks, store, *more = sys.argv[1:]
    if int(ranks) > 1 and "RANK" not in os.environ:
        variables = os.environ | {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1"}
        of_ranks = [variables | {"RANK": str(n), "LOCAL_RANK": str(n)} for n in range(int(ranks))]
        started = [subprocess.Popen([sys.executable, *sys.argv], env=of_rank) for of_rank in of_ranks]
        sys.exit(max(abs(each.wait()) for each in started))
    set_up()
    main(kind, int(os.environ.get("RANK", "0")), int(ranks), store, torch.bfloat16 if more else torch.float32)
