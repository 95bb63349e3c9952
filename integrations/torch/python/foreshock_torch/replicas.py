"""Determines which tensors a framework keeps equal over ranks, and prefixes the names of all other tensors.

The agent, another process, compares tensors bit for bit across ranks: those of the same name that are the same part of
the whole tensor, on ranks with the same coordinates. Here the coordinates of a rank are its indices in the tensor,
pipeline and expert dimensions of parallelism (topology.py). A tensor may differ between ranks by design although its
name, its part and the coordinates are equal: a manually sharded head, an expert that DDP ignores, a flat shard of FSDP.
It must have another name on each rank, so its prefix contains the rank. If a tensor is equal on some ranks but not on
all, its prefix has the lowest of these.
suppress_ours() drops exceptions, but not those that a signal handler of the training raised (is_of_trainer()).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from .names import as_bytes
from .signals import is_of_trainer, suppress_ours
from .topology import (
    KNOWN_DIMENSIONS,
    distributed_functions,
    is_ddp,
    megatron_coordinates,
    mesh_with_coordinates,
    placements_of,
    root_of,
)

NAME_BYTES = 159  # a name has at most so many bytes in the segment (shared memory that the agent reads)

# DDP's communication hooks after which all ranks have the same gradient. Others may average less often (local SGD).
AVERAGING_HOOKS = (
    "allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "powerSGD_hook", "batched_powerSGD_hook",
)  # fmt: skip
HOOK_PACKAGE = "torch.distributed.algorithms.ddp_comm_hooks."


def _is_averaging(hook: Any, state: Any, module: Any) -> bool:
    """Whether the hook is in AVERAGING_HOOKS and averages over the module's ranks, or over all ranks. `state`: the
    argument with which the hook was registered: a process group, an object that has one, or None (all ranks)."""
    process_group = getattr(state, "process_group", state)
    is_of_torch = getattr(hook, "__module__", "").startswith(HOOK_PACKAGE)
    is_known = is_of_torch and getattr(hook, "__name__", "") in AVERAGING_HOOKS
    return is_known and (process_group is None or process_group is module.process_group)


def _prefixes_of_module(module: Any, distributed: Any) -> dict[int, str]:
    """{address: prefix} of the parameters of a DistributedDataParallel. An address is tensor._cdata.

    The prefix is "" if the module's group has all ranks, else "group<N>." with the lowest rank N of the group. With a
    hook such as local SGD's, ranks drift apart: then it is "local<own rank>.", which differs on each rank.
    """
    if not all(_is_averaging(hook, state, module) for hook, state in getattr(module, "_comm_hooks", ())):
        return {p._cdata: f"local{distributed.get_rank()}." for p in module.module.parameters()}
    ranks = distributed.get_process_group_ranks(module.process_group)
    prefix = "" if len(ranks) == distributed.get_world_size() else f"group{min(ranks)}."
    named = module.module.named_parameters()
    return {p._cdata: prefix for name, p in named if name not in module.parameters_to_ignore}


def _prefix_of_mesh(parameter: Any, coordinate_mesh: Any, distributed: Any) -> str:
    """The prefix of a parameter on a device mesh: "group<N>." with the lowest rank N of the mesh.

    There is no prefix if the mesh has all ranks. Nor is there one if the agent distinguishes these tensors by the
    coordinates: the mesh is part of `coordinate_mesh`, the whole mesh that gives them, and each other dimension of the
    whole mesh gives a coordinate or does not change parameters.
    """
    mesh = parameter.device_mesh
    if mesh.size() == distributed.get_world_size():
        return ""
    root = root_of(mesh)
    others = {*(root.mesh_dim_names or ())} - {*(mesh.mesh_dim_names or ())}
    if root is coordinate_mesh and others <= KNOWN_DIMENSIONS:
        return ""
    return f"group{int(mesh.mesh.min())}."


def _has_other_tensor_parallelism(parameter: Any) -> bool:
    """Whether the parameter is of a Megatron expert, and experts are split over another number of ranks than the other
    layers, from which the coordinates come."""
    if getattr(parameter, "allreduce", True):  # Megatron sets False for experts
        return False
    state = sys.modules["megatron.core.parallel_state"]
    return state.get_expert_tensor_parallel_world_size() != state.get_tensor_model_parallel_world_size()


class Replicas:
    """Prefixes of parameter names on this rank, as of the moment of construction. `modules`: all modules."""

    def __init__(self, parameters: Iterable[Any], modules: Iterable[Any]) -> None:
        self._distributed = distributed_functions()  # functions of torch.distributed; None: there is only one process
        self._prefixes: dict[int, str] = {}  # by address: of the parameters of DistributedDataParallel modules
        self._has_megatron, self._coordinate_mesh = False, None
        if self._distributed is None:
            return
        self._own_prefix = f"rank{self._distributed.get_rank()}."
        with suppress_ours():
            self._has_megatron = megatron_coordinates() is not None
        with suppress_ours():
            located = mesh_with_coordinates(parameters, self._distributed.get_world_size())
            if located and not self._has_megatron:  # else the coordinates come from Megatron, not from a mesh
                self._coordinate_mesh = located[0]
        for module in modules:
            if is_ddp(module):
                with suppress_ours():
                    self._prefixes.update(_prefixes_of_module(module, self._distributed))

    def prefix(self, parameter: Any, is_named: bool) -> str:
        """The prefix of a parameter's name. "": the agent compares the parameter among all ranks that have the same
        coordinates and hold the same part of it. `is_named`: the name is a path in a model, hence the same on all
        ranks."""
        if self._distributed is None:
            return ""
        try:
            if placements_of(parameter):
                return _prefix_of_mesh(parameter, self._coordinate_mesh, self._distributed)
            if self._has_megatron and is_named and not _has_other_tensor_parallelism(parameter):
                return ""  # the agent distinguishes these tensors by the coordinates, too
        except Exception as error:  # an unknown release of a framework
            if is_of_trainer(error):
                raise
            return self._own_prefix
        return self._prefixes.get(parameter._cdata, self._own_prefix) if is_named else self._own_prefix


def prefixed(prefix: str, name: str) -> str:
    """The name with the prefix, in at most NAME_BYTES: a longer name loses its beginning. The core cuts a name without
    a prefix in the same way."""
    return prefix + as_bytes(name)[-(NAME_BYTES - len(prefix)) :].decode(errors="ignore") if prefix else name
