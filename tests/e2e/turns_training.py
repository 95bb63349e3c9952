"""The trainings of test_turns.py: `turns_training.py CASE` trains for STEPS steps."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
import torch.distributed as dist
from tiny_gpt import leave_group
from torch import nn

STEPS, CASE = 12, sys.argv[1]
torch.manual_seed(0)
torch.set_num_threads(1)


def half() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16))


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(4, 16)).square().mean()


model, other = half(), half()
first, second = torch.optim.AdamW(model.parameters(), fused=CASE == "overflow"), None
if CASE == "two":  # as Muon is used
    matrices, rest = ([p for p in model.parameters() if (p.dim() == 2) == flag] for flag in (True, False))
    first, second = torch.optim.SGD(matrices, lr=1e-3), torch.optim.AdamW(rest)
elif CASE in ("gan", "critic"):
    second = torch.optim.AdamW(other.parameters())
elif CASE == "large":
    model.table = nn.Parameter(torch.randint(-128, 128, (5_000_000,)) / 128)
    first = torch.optim.SGD(model.parameters(), lr=1e-3)
elif CASE == "fsdp1":
    from torch.distributed.fsdp import FullyShardedDataParallel

    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    first = torch.optim.AdamW(model.parameters())
for step in range(STEPS):
    loss = loss_of(model) + (model.table.sum() if CASE == "large" else 0)
    loss.backward()
    if CASE == "overflow":
        first.found_inf, first.grad_scale = torch.tensor(float(step % 3 == 1)), torch.tensor(1.0)
    first.step()
    first.zero_grad()
    if CASE == "two" and step % 4 != 1:  # now and then it is left out
        second.step()
        second.zero_grad()
    if CASE == "gan" or (CASE == "critic" and step % 3 == 0):
        loss_of(other).backward()
        second.step()
        second.zero_grad()
if dist.is_initialized():
    leave_group()
