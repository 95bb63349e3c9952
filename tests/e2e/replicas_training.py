"""One rank of a healthy job over gloo in which not every tensor is the same on all ranks.

`replicas_training.py STEPS parts|local_sgd|zero|report|report_one`: beside what DistributedDataParallel keeps equal,
parts that each rank has for itself; replicas that differ between their averages; an optimizer of which each rank steps
a part; steps that are told more rarely than they are taken; or by one rank alone, which counts from 0.
"""

import sys

import torch
import torch.distributed as dist
from tiny_gpt import Batches, TinyGpt, leave_group, loss_of, set_up
from torch import nn

STEPS, KIND = int(sys.argv[1]), sys.argv[2]
DDP = nn.parallel.DistributedDataParallel


class Parts(nn.Module):
    """An expert that DDP leaves alone, and a head that it does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TinyGpt(layers=2, precision=torch.float32)
        torch.manual_seed(7 + dist.get_rank())
        self.expert = nn.Linear(8, 8)
        DDP._set_params_and_buffers_to_ignore_for_model(self, ["expert.weight", "expert.bias"])

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(*inputs) + self.expert(torch.ones(8)).mean()


def optimizer_of(model: DDP) -> torch.optim.Optimizer:
    if KIND == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    if KIND == "local_sgd":
        from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer

        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
        model.register_comm_hook(local.PostLocalSGDState(None, alone, 2), local.post_localSGD_hook)
        inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return PostLocalSGDOptimizer(inner, PeriodicModelAverager(period=4, warmup_steps=2))
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


set_up()
dist.init_process_group("gloo")
model = DDP(Parts() if KIND == "parts" else TinyGpt(layers=2, precision=torch.float32))
optimizer = optimizer_of(model)
head = nn.Linear(8, 8)
if KIND == "parts":
    nn.init.constant_(head.weight, 0.1 * dist.get_rank())
    optimizer.add_param_group({"params": list(head.parameters())})
batch = Batches(dist.get_rank())
for step in range(1, STEPS + 1):
    optimizer.zero_grad()
    (loss_of(model, batch()) + head(torch.ones(8)).square().mean()).backward()
    optimizer.step()
    if (KIND == "report" and step % 3 == 0) or (KIND == "report_one" and dist.get_rank() == 0):
        import foreshock_torch

        foreshock_torch.report(step=step if KIND == "report" else step - 1)
leave_group()
