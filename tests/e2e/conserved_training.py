"""Trainings in which the gradient of one parameter, or of all, is not the sum of its contributions; and sound ones.

`conserved_training.py KIND RANKS STORE [bf16]`: STORE is a file for the process group of several ranks. The kinds are
those of the table in bench/gradients.py. Kinds "shards..." use FSDP2, "hybrid..." FSDP2 with two copies of each shard,
"tensor..." tensor parallelism of DTensors, "grid..." the same on two pairs of ranks, between which the training sums
the gradients itself, "plane..." FSDP2 over two such pairs, "zero..." ZeroRedundancyOptimizer, "experts..." a model
whose ranks have an expert each; the others one process, DDP, or sums by the training itself.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import torch
import torch.distributed as dist
from tiny_gpt import VOCABULARY, TinyGpt, leave_group, set_up, tell
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

STEPS, PASSES = 7, 3
BAD = "blocks.1.up.weight"
# The training sums the gradients itself.
BY_HAND = ("by_hand", "left_out", "summed_twice", "divided_twice", "reads_early")
TENSORS = ("tensor", "grid", "plane")  # families with tensor parallelism


class Tensors(nn.Module):
    """A block of a mixture of experts with one expert on each of the ranks of a tensor-parallel mesh. All parameters
    are DTensors: `up` is sharded, the others are replicated. The norm sees a part of the sequence on each rank.

    What a rank computes with a local tensor contributes a part of the gradient of a replicated one. DTensor sums these
    parts only if to_local() gets the placement Partial; kind "tensor_router" or "tensor_norm" does without.
    """

    def __init__(self, width: int, mesh: Any, kind: str) -> None:
        super().__init__()
        self.mesh, self.kind = mesh, kind
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, mesh.size())
        self.up = nn.Linear(width, width * mesh.size(), bias=False)

    def local(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        from torch.distributed.tensor import Partial

        return tensor.to_local(grad_placements=None if self.kind.endswith(f"_{what}") else [Partial()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        own = x.redistribute(placements=[Shard(1)]).to_local()
        scale, shift = (self.local(each, "norm") for each in (self.norm.weight, self.norm.bias))
        own = functional.layer_norm(own, own.shape[-1:], scale, shift)
        y = DTensor.from_local(own, self.mesh, [Shard(1)]).redistribute(placements=[Replicate()])
        scores = self.local(self.router(y).softmax(-1), "router")[..., self.mesh.get_local_rank(), None]
        out = functional.linear(self.local(y, "input"), self.up.weight.to_local()).relu() * scores
        return x + DTensor.from_local(out, self.mesh, [Partial()]).redistribute(placements=[Replicate()])


class TensorParallel(nn.Module):
    def __init__(self, kind: str, mesh: Any) -> None:
        super().__init__()
        from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

        self.mesh = mesh
        self.embedding, self.head = nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY)
        self.blocks = nn.ModuleList(Tensors(32, self.mesh, kind) for _ in range(2))

        def place(name: str, module: nn.Module, mesh: Any) -> None:
            placement = Shard(0) if name.endswith(".up") else Replicate()
            for key, parameter in list(module.named_parameters(recurse=False)):
                module.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh, [placement])))

        distribute_module(self, self.mesh, place)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor, Replicate

        x = self.embedding(DTensor.from_local(tokens, self.mesh, [Replicate()]))
        for block in self.blocks:
            x = block(x)
        return self.head(x).to_local()


class Exchange(torch.autograd.Function):
    """The sum over the ranks. In the backward pass too, except kind "experts_lost": there, a rank gets the gradient of
    its own tokens only."""

    @staticmethod
    def forward(context, kind: str, out: torch.Tensor) -> torch.Tensor:
        context.kind = kind
        out = out.clone()
        dist.all_reduce(out)
        return out

    @staticmethod
    def backward(context, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        gradient = gradient.clone()
        if context.kind != "experts_lost":
            dist.all_reduce(gradient)
        return None, gradient


class Experts(nn.Module):
    """Data parallel but for its experts, one per rank, each of which computes the tokens of all ranks."""

    def __init__(self, kind: str, rank: int, ranks: int) -> None:
        super().__init__()
        self.kind, self.rank, self.ranks = kind, rank, ranks
        self.embedding, self.head = nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY)
        self.router, self.norm = nn.Linear(32, ranks), nn.LayerNorm(32)
        torch.manual_seed(rank)
        self.experts = nn.Linear(32, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        scored = self.norm(x), self.router(x).softmax(-1)
        every = torch.zeros(self.ranks, *x.shape[:2], 32 + self.ranks)
        every[self.rank] = torch.cat(scored, dim=-1)
        every = Exchange.apply("", every)
        out = self.experts(every[..., :32]).relu() * every[..., 32 + self.rank, None]
        return self.head(x + Exchange.apply(self.kind, out)[self.rank])


def in_shards(kind: str, ranks: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (ranks,))
    if kind.startswith("hybrid"):
        mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
    model = TinyGpt(layers=2, width=32, precision=torch.float32)
    reduced = torch.bfloat16 if kind == "shards_rounded" else torch.float32
    options = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(reduce_dtype=reduced)}
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def tensor_parallel(kind: str, ranks: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if kind.startswith("tensor"):
        return TensorParallel(kind, init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",)))
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp", "tp"))
    model = TensorParallel(kind, mesh["tp"])
    if kind.startswith("grid"):
        return model
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def made(kind: str, rank: int, ranks: int, precision: torch.dtype) -> nn.Module:
    if kind.startswith(("shards", "hybrid")):
        return in_shards(kind, ranks)
    if kind.startswith(TENSORS):
        return tensor_parallel(kind, ranks)
    if kind.startswith("experts"):
        return Experts(kind, rank, ranks)
    return TinyGpt(layers=2, width=32).to(precision)


def main(kind: str, rank: int, ranks: int, store: str, precision: torch.dtype) -> None:
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    model = made(kind, rank, ranks, precision)
    bad = dict(model.named_parameters()).get(BAD)
    family, _, fault = kind.partition("_")
    if family in ("shards", "hybrid"):
        kind = fault  # the faults of these trainings are those of others
    wrapped = model
    if family == "experts":
        apart = [name for name, _ in model.named_parameters() if name.startswith("experts.")]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, apart)
        wrapped = DistributedDataParallel(model)
    elif ranks > 1 and kind not in BY_HAND and family not in ("shards", "hybrid", *TENSORS):
        if kind == "ignored":
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, [BAD])
        wrapped = DistributedDataParallel(model)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if family == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    sharing = {"tensor": ranks, "grid": 2, "plane": 2}.get(family, 1)  # ranks that see the same tokens
    generator = torch.Generator().manual_seed(1 + rank // sharing)
    for step in range(STEPS):
        for number in range(PASSES):
            is_last = number == PASSES - 1
            tokens = torch.randint(VOCABULARY, (2, 17), generator=generator)
            waits = wrapped is not model and not is_last
            with wrapped.no_sync() if waits else contextlib.nullcontext():
                logits = wrapped(tokens[:, :-1]).float()
                loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                early = bad.grad.clone() if kind == "reads_early" and is_last else None
                (loss / PASSES).backward()
            if early is not None:
                bad.grad.copy_(early)
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
        if family == "grid":
            others = dist.new_group([rank % 2, rank % 2 + 2], use_local_synchronization=True)
            for name, parameter in model.named_parameters():
                if fault != "left_out" or name != BAD:
                    dist.all_reduce(parameter.grad.to_local(), group=others)
                parameter.grad /= 2
        if kind == "drops" or (kind == "zero_drops" and optimizer._param_to_rank[bad] == rank):
            bad.grad.zero_()
        if kind == "doubles":
            bad.grad *= 2
        if kind == "masks":  # sound: the training wants it so
            bad.grad[:7] = 0
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        gain = model.blocks[0].norm.weight.to_local() if fault == "stuck" and rank == 1 and step > 0 else None
        before = None if gain is None else gain.detach().clone()
        optimizer.step()
        if gain is not None:
            gain.detach().copy_(before)
        if kind == "keeps_one":
            for parameter in model.parameters():
                parameter.grad = parameter.grad if parameter is bad else None
        elif kind != "keeps_all":
            optimizer.zero_grad()
    parts = [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]
    tell(sum=sum(float(part.double().sum()) for part in parts))
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
