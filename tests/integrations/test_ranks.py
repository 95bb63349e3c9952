"""Two ranks over gloo: layers are named under DDP and FSDP2, and local norms never pose as the run's."""

from __future__ import annotations

import pytest

TWO_RANKS = """
import os
rank = 0 if os.fork() else 1
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=2)
class Attention(nn.Module):
    def __init__(self): super().__init__(); self.qkv, self.o = nn.Linear(32, 96), nn.Linear(32, 32)
    def forward(self, x):
        q, k, v = [t.view(2, 8, 4, 8).transpose(1, 2) for t in self.qkv(x).split(32, 2)]
        return x + self.o(sdpa(q, k, v).transpose(1, 2).reshape(2, 8, 32))
model = nn.Sequential(*[Attention() for _ in range(2)])
if os.environ["HOW"] == "fsdp":
    from torch.distributed.fsdp import fully_shard
    for block in model: fully_shard(block, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
else:
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=os.environ["HOW"] == "ddp_view")
opt = torch.optim.AdamW(model.parameters()); truth = []; torch.manual_seed(rank)
for _ in range(3):
    opt.zero_grad(); model(torch.randn(2, 8, 32)).square().mean().backward()
    if os.environ["HOW"] != "fsdp": truth.append(sum(p.grad.double().square().sum().item() for p in model.parameters()))
    if os.environ["CLIP"]: nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    opt.step()
rows = events(); name = {r["identity"]: r["name"] for r in rows if r["event"] == "name"}
layers = [name.get(r["layer"]) for r in rows if r["event"] == "leave"][-4:]
norms = [sum(r["squares"].values()) for r in rows if r["event"] == "gradients"]
who = [(r["rank"], r["world_size"]) for r in rows if r["event"] == "identity"]
del model                       # before the group: gloo's own threads may hold the last reference to its work
dist.destroy_process_group()
if rank: os._exit(0)
os.wait()
print(json.dumps([layers, norms, truth, who, [r["step"] for r in rows if r["event"] == "step"]]))
"""


@pytest.mark.parametrize(
    ("how", "clip", "published"),
    [
        ("ddp", "", True),
        ("ddp", "yes", True),
        ("ddp_view", "yes", True),
        ("ddp_view", "", False),  # writes into the bucket cannot be told from a clipping by hand
        ("fsdp", "", False),
        ("fsdp", "yes", False),
    ],
)
def test_two_ranks(trainer, tmp_path, how: str, clip: str, published: bool) -> None:
    meeting = str(tmp_path / "meeting")
    layers, norms, truth, who, steps = trainer(TWO_RANKS, HOW=how, CLIP=clip, MEETING=meeting)
    assert layers == ["0.qkv.weight", "1.qkv.weight", "1.qkv.weight", "0.qkv.weight"]
    assert who == [[0, 2]]
    assert steps == [1, 2, 3]
    assert len(norms) == (3 if published else 0)
    if published:
        assert all(abs(a - b) <= 1e-5 * b for a, b in zip(norms, truth, strict=True))
