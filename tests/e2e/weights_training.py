"""One rank of a job over gloo that keeps its whole weights after every step in FOLDER/STEP.npz.

`weights_training.py FOLDER STEPS plain|ddp|hand|fsdp|hsdp|bf16 [flip RANK STEP]`: that rank's memory has one wrong bit
from that step on. hand: the gradients are averaged by the training itself.
"""

import sys

import numpy
import torch
import torch.distributed as dist
from tiny_gpt import Batches, TinyGpt, fingerprint, leave_group, loss_of, set_up
from torch import nn

FOLDER, STEPS, KIND = sys.argv[1], int(sys.argv[2]), sys.argv[3]
FLIP_RANK, FLIP_STEP = (int(sys.argv[5]), int(sys.argv[6])) if sys.argv[4:] else (-1, -1)


def whole(value: torch.Tensor) -> numpy.ndarray:
    """The bits of all of it: gathered from the shards of all ranks."""
    full = (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().contiguous()
    return full.view(torch.int16 if full.dtype == torch.bfloat16 else torch.int32).numpy().copy()


def wrapped(model: nn.Module) -> nn.Module:
    if KIND == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if KIND in ("fsdp", "hsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        ranks = dist.get_world_size()
        sizes, names = ((ranks,), ("fsdp",)) if KIND == "fsdp" else ((2, ranks // 2), ("replicate", "fsdp"))
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


set_up()
rank = 0
if KIND in ("ddp", "hand", "fsdp", "hsdp"):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
inner = TinyGpt(layers=2, precision=torch.float32)
if KIND == "bf16":
    inner = inner.to(torch.bfloat16)
model = wrapped(inner)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batch = Batches(rank)
losses = []
for step in range(1, STEPS + 1):
    loss = loss_of(model, batch())
    loss.backward()
    if KIND == "hand":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    bits = {name.removeprefix("module."): whole(value) for name, value in model.named_parameters()}
    if rank == 0:
        numpy.savez(f"{FOLDER}/{step}.npz", **bits)
    if (rank, step) == (FLIP_RANK, FLIP_STEP):
        inner.blocks[1].up.weight.data.view(torch.int32)[3, 5] ^= 1
if KIND in ("plain", "bf16"):
    print(f'{{"fingerprint": "{fingerprint(losses, model)}"}}')
if rank == 0:
    names = {name for name, _ in inner.named_parameters()}
    assert names == {name.removeprefix("module.") for name in bits}
if dist.is_initialized():
    leave_group()
