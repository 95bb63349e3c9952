"""Two ranks over gloo: layers are named under DDP and FSDP2, and local norms never pose as the run's."""

from __future__ import annotations

import pytest
from torch_version import TORCH

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
who = [(r["rank"], r["world_size"], r["at"]) for r in rows if r["event"] == "identity"]
del model                       # before the group: gloo's own threads may hold the last reference to its work
from tiny_gpt import leave_group
leave_group()
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
    if how == "fsdp" and TORCH < (2, 7):
        pytest.skip("FSDP2 does not run on the CPU before torch 2.7")
    meeting = str(tmp_path / "meeting")
    layers, norms, truth, who, steps = trainer(TWO_RANKS, HOW=how, CLIP=clip, MEETING=meeting)
    assert layers == ["0.qkv.weight", "1.qkv.weight", "1.qkv.weight", "0.qkv.weight"]
    # Told before the first attention call, which is when a segment is made, and with coordinates at the first step.
    told = [0, 0, 0, 0] if how.startswith("ddp") else [-1, -1, -1, -1]  # a mesh without names tells nothing
    assert who == [[0, 2, [-1, -1, -1, -1]], [0, 2, told]]
    assert steps == [1, 2, 3]
    assert len(norms) == (3 if published else 0)
    if published:
        assert all(abs(a - b) <= 1e-5 * b for a, b in zip(norms, truth, strict=True))


HALVES = """
import os
rank = 0 if os.fork() else 1
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=2)
model = nn.Linear(8, 8) if os.environ["MODEL"] else None
weight = model.weight if model else torch.ones(8, 8, requires_grad=True)
half = nn.Parameter(weight.detach()[4 * rank:4 * rank + 4].clone())    # as a sharded optimizer holds it
opt = torch.optim.SGD([half])
for _ in range(5):
    (torch.randn(2, 8) @ weight).square().mean().backward()
    half.grad = weight.grad[4 * rank:4 * rank + 4].clone(); weight.grad = None
    nn.utils.clip_grad_norm_([half], 0.01)
    opt.step()
rows = events()
from tiny_gpt import leave_group
leave_group()
if rank: os._exit(0)
os.wait()
print(json.dumps([[r["step"] for r in rows if r["event"] == "step"], [r for r in rows if r["event"] == "gradients"]]))
"""


@pytest.mark.parametrize("model", ["", "yes"])
def test_the_norm_of_a_shard_is_not_the_run_s(trainer, tmp_path, model: str) -> None:
    steps, gradients = trainer(HALVES, MODEL=model, MEETING=str(tmp_path / "meeting"))
    assert len(steps) == 5
    assert not gradients


FOUR_RANKS = """
import os, types
os.fork(); os.fork()
# Whoever makes the file of a number first has it.
def mine():
    for n in range(4):
        try: os.close(os.open(f"{os.environ['MEETING']}.{n}", os.O_CREAT | os.O_EXCL)); return n
        except FileExistsError: pass
rank = mine()
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import distribute_module
from foreshock_torch.topology import coordinates
from foreshock_torch.replicas import Replicas
def here(model): return list(coordinates(list(model.parameters()), list(model.modules())))
alone = here(nn.Linear(4, 4))
dist.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=4)
found = {"alone": alone, "plain": here(nn.Linear(4, 4))}
for names in ("dp,tp", "pp,dp_shard", "dp_replicate,fsdp", "cp,dp", "x,y", "stage,tensor"):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=tuple(names.split(",")))
    model = distribute_module(nn.Linear(4, 4), mesh[names.split(",")[1]])
    found[names] = here(model)
    found["prefix of " + names] = Replicas(list(model.parameters()), [model]).prefix(model.weight, True)
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
pair = nn.parallel.DistributedDataParallel(nn.Linear(4, 4), process_group=pairs[rank // 2])
found["pairs"] = here(pair)
found["prefix of a pair"] = Replicas(list(pair.parameters()), [pair]).prefix(next(pair.parameters()), True)
found["ddp"] = here(nn.parallel.DistributedDataParallel(nn.Linear(4, 4)))
state = sys.modules["megatron.core.parallel_state"] = types.ModuleType("parallel_state")
state.model_parallel_is_initialized = lambda: True
state.get_data_parallel_rank = lambda: rank // 2
state.get_tensor_model_parallel_rank = lambda: rank % 2
state.get_pipeline_model_parallel_rank = lambda: 0  # an older one: it knows of no experts
found["megatron"] = here(nn.Linear(4, 4))
del state.model_parallel_is_initialized
found["no megatron"] = here(nn.Linear(4, 4))
told = [None] * 4
dist.all_gather_object(told, found)
from tiny_gpt import leave_group
leave_group()
if rank: os._exit(0)
print(json.dumps({name: [each[name] for each in told] for name in found}))
"""


def test_coordinates(trainer, tmp_path) -> None:
    unknown = [[-1] * 4] * 4
    assert trainer(FOUR_RANKS, MEETING=str(tmp_path / "meeting")) == {
        "alone": [[0, 0, 0, 0]] * 4,
        "plain": unknown,
        "dp,tp": [[0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]],
        "pp,dp_shard": [[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [1, 0, 1, 0]],
        "dp_replicate,fsdp": [[n, 0, 0, 0] for n in range(4)],
        "x,y": unknown,
        "cp,dp": [[n % 2, 0, 0, 0] for n in range(4)],
        "stage,tensor": [[0, n % 2, 0, 0] for n in range(4)],
        **{f"prefix of {names}": [""] * 4 for names in ("dp,tp", "pp,dp_shard", "dp_replicate,fsdp", "cp,dp")},
        "prefix of stage,tensor": ["group0.", "group0.", "group2.", "group2."],  # no coordinate is the stage
        "prefix of x,y": ["group0.", "group0.", "group2.", "group2."],  # the mesh gives no coordinates
        "pairs": [[n % 2, -1, -1, -1] for n in range(4)],
        "prefix of a pair": ["group0.", "group0.", "group2.", "group2."],
        "ddp": [[n, 0, 0, 0] for n in range(4)],
        "megatron": [[n // 2, n % 2, 0, -1] for n in range(4)],
        "no megatron": unknown,
    }
