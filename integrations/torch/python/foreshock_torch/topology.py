"""Finds the place of this process in its job: rank, world size, and coordinates, its index in each kind of parallelism
(data, tensor, pipeline, expert). -1 means unknown. Also finds how a parameter is divided over the ranks."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from zlib import crc32

from .rows import Row
from .signals import suppress_ours  # suppresses exceptions, except those that the training has raised here

# By kind of parallelism: names that frameworks use for a dimension of torch's DeviceMesh, the grid of all ranks.
DIMENSIONS = {
    "data": ("dp", "ddp", "fsdp", "data", "data_parallel", "replicate", "shard", "dp_replicate", "dp_shard"),
    "tensor": ("tp", "tensor", "tensor_parallel", "model", "mp"),
    "pipeline": ("pp", "pipe", "pipeline", "pipeline_parallel"),
    "expert": ("ep", "expert", "expert_parallel"),
}
# Names of dimensions along which parameters do not differ (context parallelism, and its product with data parallelism).
OF_CONTEXT = ("cp", "context", "context_parallel", "dp_cp", "dp_shard_cp")
KNOWN_DIMENSIONS = frozenset((*itertools.chain(*DIMENSIONS.values()), *OF_CONTEXT))
# By kind of parallelism: the function of Megatron's parallel_state that returns this process's index.
MEGATRON = {
    "data": "get_data_parallel_rank",
    "tensor": "get_tensor_model_parallel_rank",
    "pipeline": "get_pipeline_model_parallel_rank",
    "expert": "get_expert_model_parallel_rank",
}


class Coordinates(Row):
    """This process's index in each dimension of parallelism."""

    data: int = -1
    tensor: int = -1
    pipeline: int = -1
    expert: int = -1


class Topology(Row):
    rank: int
    local_rank: int
    world_size: int
    attempt: int  # how often the launcher has restarted the job
    coordinates: Coordinates


DISTRIBUTED_NAMES = ("is_available", "is_initialized", "get_rank", "get_world_size", "get_process_group_ranks")
_distributed: Any = None  # has the functions of torch.distributed with these names; None: torch lacks one of them


def bind_distributed() -> None:
    """Keeps the functions of torch.distributed. Must be called when the helper (this package) starts: tests of the
    training may replace the functions later."""
    global _distributed
    module = sys.modules.get("torch.distributed")
    if module is not None and all(hasattr(module, name) for name in DISTRIBUTED_NAMES):
        _distributed = SimpleNamespace(**{name: getattr(module, name) for name in DISTRIBUTED_NAMES})


def distributed_functions() -> Any:
    """The functions of torch.distributed if it is initialized with several processes, else None."""
    distributed = _distributed
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed if distributed.get_world_size() > 1 else None


def torch_world_size() -> int:
    """The world size of torch.distributed; 1 if it is not initialized."""
    distributed = distributed_functions()
    return 1 if distributed is None else distributed.get_world_size()


def placements_of(parameter: Any) -> tuple[Any, ...]:
    """How a DTensor is divided over the ranks, by dimension of its mesh. (): it is not a DTensor."""
    placements = getattr(parameter, "placements", None)
    return placements if isinstance(placements, tuple) else ()  # not a tuple: an attribute that the training has set


class MeshNumbers:
    """A number of 32 bits for each device mesh, the same on all of its ranks: 1 if it has all ranks of the job, else a
    hash of its ranks."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # by id of a mesh that exists longer than this object

    def of(self, parameter: Any) -> int:
        """0: the parameter is not distributed, or its mesh is unknown."""
        mesh = parameter.device_mesh if placements_of(parameter) else None
        if mesh is not None and id(mesh) not in self._known:
            self._known[id(mesh)] = 0
            with suppress_ours():
                self._known[id(mesh)] = self._number_of(mesh)
        return self._known.get(id(mesh), 0)

    @staticmethod
    def _number_of(mesh: Any) -> int:
        if mesh.size() == torch_world_size():
            return 1
        return crc32(str(sorted(mesh.mesh.flatten().tolist())).encode()) | 2


def is_flat(parameter: Any) -> bool:
    """Whether FSDP1 concatenated several parameters into this one."""
    return any(getattr(parameter, mark, None) for mark in ("_is_flat_param", "_fsdp_flattened"))


def is_shard(parameter: Any) -> bool:
    """Whether this is a shard of a larger parameter, so that its gradient is a shard of the larger one's gradient."""
    if placements := placements_of(parameter):
        return any(type(placement).__name__ != "Replicate" for placement in placements)
    return is_flat(parameter) or bool(getattr(parameter, "tensor_model_parallel", None))  # set by Megatron


def is_ddp(module: Any) -> bool:
    """Whether `module` is torch's DistributedDataParallel. Megatron-LM and Apex have other classes of that name."""
    ddp = getattr(sys.modules.get("torch.nn.parallel.distributed"), "DistributedDataParallel", None)
    return isinstance(ddp, type) and issubclass(type(module), ddp)


def _environment_number(*names: str) -> int:
    """The value of the first of these environment variables that is a number; -1: all are missing or not numbers."""
    found = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in found if value.isdecimal()), -1)


def megatron_coordinates() -> Coordinates | None:
    """Coordinates from Megatron; None if the training does not use it. A function that fails leaves -1."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return None
    found = {}
    for name, function in MEGATRON.items():
        with suppress_ours():
            found[name] = int(getattr(state, function)())
    return Coordinates(**found)


def root_of(mesh: Any) -> Any:
    """The whole mesh of which `mesh` is a part. torch before 2.10 keeps it in a global object."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    return sys.modules["torch.distributed.device_mesh"]._mesh_resources.get_root_mesh(mesh)


def _mesh_coordinates(mesh: Any, world_size: int) -> Coordinates | None:
    """Coordinates from the names of the mesh's dimensions; None if no name is in DIMENSIONS. If a kind of parallelism
    has no dimension, its coordinate is 0 if the mesh covers all ranks, else unknown."""
    root = root_of(mesh)
    names, here = root.mesh_dim_names, root.get_coordinate()
    if not names or here is None:  # None: this process is not in the mesh
        return None
    sizes = tuple(root.mesh.shape)
    absent = 0 if math.prod(sizes) == world_size else -1
    found = {}
    for kind, known in DIMENSIONS.items():
        dimensions = [n for n, name in enumerate(names) if name in known]
        index = 0
        for n in dimensions:  # several dimensions of one kind (dp_replicate and dp_shard) count as one
            index = index * sizes[n] + here[n]
        found[kind] = index if dimensions else absent
    is_any_known = any(name in known for known in DIMENSIONS.values() for name in names)
    return Coordinates(**found) if is_any_known else None


def _ddp_coordinates(modules: Iterable[Any], distributed: Any) -> Coordinates | None:
    """Coordinates from the first DistributedDataParallel. Its process group is the data-parallel dimension. If the
    group has all ranks, every other dimension has size 1, so its coordinate is 0."""
    for module in modules:
        if is_ddp(module):
            has_all_ranks = distributed.get_world_size(module.process_group) == distributed.get_world_size()
            rest = 0 if has_all_ranks else -1
            return Coordinates(distributed.get_rank(module.process_group), rest, rest, rest)
    return None


def mesh_with_coordinates(parameters: Iterable[Any], world_size: int) -> tuple[Any, Coordinates] | None:
    """The first whole mesh of a parameter that gives coordinates, and these; None if no mesh does."""
    meshes = {id(mesh): mesh for p in parameters if (mesh := getattr(p, "device_mesh", None)) is not None}
    for mesh in meshes.values():
        if (found := _mesh_coordinates(mesh, world_size)) is not None:
            return root_of(mesh), found
    return None


def coordinates(parameters: Iterable[Any], modules: Iterable[Any]) -> Coordinates:
    """Coordinates from the first source that has them: Megatron, a distributed parameter's mesh, DDP."""
    distributed = distributed_functions()
    if distributed is None:  # a single process has coordinates 0; those of several processes are unknown
        is_alone = _environment_number("WORLD_SIZE", "SLURM_NTASKS") in (-1, 1)
        return Coordinates(0, 0, 0, 0) if is_alone else Coordinates()
    with suppress_ours():
        if (found := megatron_coordinates()) is not None:
            return found
    with suppress_ours():
        if (located := mesh_with_coordinates(parameters, distributed.get_world_size())) is not None:
            return located[1]
    with suppress_ours():
        if (found := _ddp_coordinates(modules, distributed)) is not None:
            return found
    return Coordinates()


def topology(parameters: Iterable[Any] = (), modules: Iterable[Any] = ()) -> Topology:
    """The place of this process. The coordinates are found from `parameters` and `modules` of the model."""
    distributed = distributed_functions()
    rank, world_size = _environment_number("RANK"), _environment_number("WORLD_SIZE")
    if distributed is not None:
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    attempt = _environment_number("TORCHELASTIC_RESTART_COUNT")
    return Topology(rank, _environment_number("LOCAL_RANK"), world_size, attempt, coordinates(parameters, modules))
