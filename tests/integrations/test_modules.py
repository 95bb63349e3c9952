"""Names of models that stand in the wrappers of others."""

from __future__ import annotations

import pytest
from torch_version import TORCH

pytestmark = pytest.mark.quick

BLOCKS = """
from torch import nn
class Block(nn.Module):
    def __init__(self, d=32): super().__init__(); self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
    def forward(self, x):
        q, k, v = [t.view(2, 8, 4, 8).transpose(1, 2) for t in self.qkv(x).split(32, 2)]
        return x + self.o(sdpa(q, k, v).transpose(1, 2).reshape(2, 8, 32))
model = nn.Sequential(Block(), Block())
def train(model, optimizer=torch.optim.AdamW):
    opt = optimizer(model.parameters())
    for _ in range(3):
        opt.zero_grad(); model(torch.randn(2, 8, 32)).square().mean().backward(); opt.step()
def told():
    rows = events(); name = {r["identity"]: r["name"] for r in rows if r["event"] == "name"}
    off = [r["reason"] for r in rows if r["event"] == "off"]
    layers = [name.get(r["layer"]) for r in rows if r["event"] == "leave"][-4:]
    return [off, [r["step"] for r in rows if r["event"] == "step"], layers]
"""
LAYERS = ["0.qkv.weight", "1.qkv.weight", "1.qkv.weight", "0.qkv.weight"]


def test_a_wrapper_of_another_that_is_called_as_torch_s(trainer) -> None:
    """Those of Megatron-LM and Apex have the name of torch's DistributedDataParallel, and not its attributes."""
    assert trainer(f"""{BLOCKS}
class DistributedDataParallel(nn.Module):
    def __init__(self, module): super().__init__(); self.module = module
    def forward(self, x): return self.module(x)
train(DistributedDataParallel(model)); print(json.dumps(told()))
""") == [[], [1, 2, 3], LAYERS]


ONE_RANK = """
import torch.distributed as dist
from torch.distributed.tensor import Shard
dist.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=0, world_size=1)
from torch.distributed.fsdp import fully_shard
"""


def test_a_module_whose_parameters_are_sharded_over_several_meshes(trainer, tmp_path) -> None:
    """As those of experts are, which other ranks share than the rest of the layer."""
    if TORCH < (2, 13):
        pytest.skip("all parameters of a module are of one mesh before torch 2.13")
    assert trainer(
        f"""{BLOCKS}{ONE_RANK}
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
mesh = lambda name: dist.DeviceMesh.from_group(dist.new_group([0]), "cpu", mesh=[0], mesh_dim_names=(name,))
whole, experts = mesh("dp"), mesh("experts")
every, few = [FSDPMeshInfo(mesh=each, shard_mesh_dim=0) for each in (whole, experts)]
for block in model:
    mine = set(map(id, block.o.parameters()))
    place = lambda p: ShardPlacementResult(Shard(0), few if id(p) in mine else every)
    fully_shard(block, mesh=whole, shard_placement_fn=place)
fully_shard(model, mesh=whole)
assert len(model[0]._get_fsdp_state()._fsdp_param_groups) == 2
train(model); answer = told()
del model
from tiny_gpt import leave_group
leave_group(); print(json.dumps(answer))
""",
        MEETING=str(tmp_path / "meeting"),
    ) == [[], [1, 2, 3], LAYERS]


FAILED = 32  # FORESHOCK_GIVEN_UP_FAILED
GIVEN_UP = 16  # FORESHOCK_GIVEN_UP_TENSORS


@pytest.mark.parametrize(
    ("fail", "sound_steps", "times"),
    [((1, 2, 3), 2, 3), ((2, 3, 4), 5, 4), ((2,), 6, 3)],  # `times` it is asked for names in all
)
def test_models_that_cannot_be_named(trainer, fail: tuple[int, ...], sound_steps: int, times: int) -> None:
    """Names are given up for good after three times, and said to be; no tensor keeps one that was given before, and
    all else goes on."""
    rows, asked = trainer(f"""{BLOCKS}
from foreshock_torch import modules
real, times = modules.layer_numbers, []
def failing(root):
    times.append(1)
    if len(times) in {fail}: raise AttributeError("of a release that we do not know")
    return real(root)
modules.layer_numbers = failing
other = nn.Sequential(Block(), Block()); train(model); train(other)
print(json.dumps([events(), len(times)]))
""")
    kinds = [row["event"] for row in rows]
    assert "off" not in kinds
    assert asked == times
    told = [row["given"] & (GIVEN_UP | FAILED) for row in rows if row["event"] == "step"]
    assert told == [0] * sound_steps + [GIVEN_UP | FAILED] * (6 - sound_steps)
    assert kinds.count("loss") >= 6
    known: set[int] = set()
    for row in rows:
        if row["event"] == "name":
            known.add(row["identity"])
        elif row["event"] == "names_forgotten":
            known.clear()
    assert bool(known) == (sound_steps == 6)


@pytest.mark.parametrize("gone", ["del model, opt", "model[1] = Block()"])
def test_names_go_with_the_modules_that_had_them(trainer, gone: str) -> None:
    """Before a tensor can come to lie where theirs were; those of others are told again at the next step."""
    before, after, again = trainer(f"""{BLOCKS}
from foreshock_torch import start
def train():
    opt.zero_grad(); model(torch.randn(2, 8, 32)).square().mean().backward(); opt.step()
wrapper = nn.Sequential(model[0])
opt = torch.optim.AdamW(model.parameters()); train(); train(); events()
del wrapper; train(); before = events()   # what was in it is still in the model
{gone}; after = events()
model = nn.Sequential(Block(), Block()); opt = torch.optim.AdamW(model.parameters()); train(); again = events()
print(json.dumps([before, after, [again, [p._cdata for p in model.parameters()]]]))
""")
    assert "names_forgotten" not in [row["event"] for row in before]
    assert [row["event"] for row in after] == ["names_forgotten"]
    rows, addresses = again
    assert {row["identity"] for row in rows if row["event"] == "name"} == set(addresses)


@pytest.mark.parametrize(
    "copied",
    ["copy.deepcopy(model)", "pickle.loads(pickle.dumps(model))", "torch.load(saved(model), weights_only=False)"],
)
def test_a_copied_model_has_names(trainer, copied: str) -> None:
    """A copy registers no parameter and no module; its state is handed over."""
    assert trainer(f"""{BLOCKS}
import copy, io, pickle
import __main__; __main__.Block = Block
def saved(model): file = io.BytesIO(); torch.save(model, file); file.seek(0); return file
model = {copied}
train(model); print(json.dumps(told()))
""") == [[], [1, 2, 3], LAYERS]


def test_a_replicated_tensor_is_no_shard(trainer, tmp_path) -> None:
    """A DTensor says how it lies over the ranks; only one that is split has a part of the gradient."""
    assert trainer(
        f"""{ONE_RANK}
from foreshock_torch.topology import is_shard
from torch.distributed.tensor import Replicate, distribute_tensor
mesh = dist.init_device_mesh("cpu", (1, 1))
whole, split = [distribute_tensor(torch.ones(4), mesh, [Replicate(), place]) for place in (Replicate(), Shard(0))]
plain = torch.ones(4); plain.placements = "anywhere"  # an attribute of the training's own
print(json.dumps([is_shard(each) for each in (whole, split, plain)]))
""",
        MEETING=str(tmp_path / "meeting"),
    ) == [False, True, False]


def test_a_backward_pass_that_is_compiled_with_its_step(trainer) -> None:
    """Dynamo traces the hook of registered modules when it wraps the graph of the backward pass."""
    assert trainer("""
model = torch.nn.Linear(4, 4)
torch._dynamo.config.compiled_autograd = True
@torch.compile(backend="eager")
def step(x): model(x).square().mean().backward()
opt = torch.optim.AdamW(model.parameters())
for _ in range(3):
    step(torch.randn(2, 4)); opt.step(); opt.zero_grad()
rows = events()
print(json.dumps([r["step"] for r in rows if r["event"] == "step"]))
""") == [1, 2, 3]
