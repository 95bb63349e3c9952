"""Which tensors a framework keeps equal over ranks. Those alone may bear one name on several ranks, since equal names
are compared bit for bit: a head sharded by hand, an expert that DDP leaves alone, or the flat shard of an optimizer
bears its rank in its name."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from .place import group, is_replica, of_megatron, root_of
from .signals import is_of_trainer, suppress_ours

NAME_BYTES = 159  # as the segment keeps it; of a longer one the end

# Communication hooks of DistributedDataParallel after which all ranks hold the same gradient. Others may average less,
# as that of local SGD does.
FAITHFUL = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "powerSGD_hook", "batched_powerSGD_hook")
HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."


def _is_faithful(hook: Any, state: Any, module: Any) -> bool:
    over = getattr(state, "process_group", state)
    is_known = getattr(hook, "__module__", "").startswith(HOOKS) and getattr(hook, "__name__", "") in FAITHFUL
    return is_known and (over is None or over is module.process_group)


def _of_module(module: Any, distributed: Any) -> dict[int, str]:
    """{address: prefix} of what a DistributedDataParallel keeps equal: none over the world; over some ranks, theirs.
    A communication hook such as that of local SGD lets the ranks drift apart between two averages: then the prefix is
    one that the agent does not compare, although the tensors are equal now and then."""
    if not all(_is_faithful(hook, state, module) for hook, state in getattr(module, "_comm_hooks", ())):
        return {p._cdata: f"local{distributed.get_rank()}." for p in module.module.parameters()}
    ranks = distributed.get_process_group_ranks(module.process_group)
    prefix = "" if len(ranks) == distributed.get_world_size() else f"rank{min(ranks)}."
    inner = module.module.named_parameters()
    return {p._cdata: prefix for name, p in inner if name not in module.parameters_to_ignore}


def _of_mesh(parameter: Any, told_by: Any, distributed: Any) -> str:
    """A mesh of some ranks only, whose coordinates are not the run's, has to tell them apart by name."""
    mesh = parameter.device_mesh
    if mesh.size() == distributed.get_world_size() or root_of(mesh) is told_by:
        return ""
    return f"rank{int(mesh.mesh.min())}."


def _is_split_otherwise(parameter: Any) -> bool:
    """An expert of Megatron whose tensor parallelism is not the model's, which its coordinates do not say."""
    if getattr(parameter, "allreduce", True):
        return False
    state = sys.modules["megatron.core.parallel_state"]
    return state.get_expert_tensor_parallel_world_size() != state.get_tensor_model_parallel_world_size()


class Replicas:
    """As they are when the tensors are named."""

    def __init__(self, parameters: Iterable[Any], modules: Iterable[Any]) -> None:
        self._group = group()
        self._prefixes: dict[int, str] = {}
        self._has_megatron, self._told_by = False, None
        if self._group is None:
            return
        self._alone = f"rank{self._group.get_rank()}."
        with suppress_ours():
            self._has_megatron = of_megatron() is not None
        with suppress_ours():
            meshes = (getattr(parameter, "device_mesh", None) for parameter in parameters)
            self._told_by = next((root_of(mesh) for mesh in meshes if mesh is not None), None)
        for module in modules:
            if is_replica(module):
                with suppress_ours():
                    self._prefixes.update(_of_module(module, self._group))

    def prefix(self, parameter: Any, is_named: bool) -> str:
        """What goes before the name of a parameter on this rank."""
        if self._group is None:
            return ""
        try:
            if getattr(parameter, "placements", None):
                return _of_mesh(parameter, self._told_by, self._group)
            if self._has_megatron and is_named and not _is_split_otherwise(parameter):
                return ""
        except Exception as error:  # of a release that we do not know
            if is_of_trainer(error):
                raise
            return self._alone
        return self._prefixes.get(parameter._cdata, self._alone) if is_named else self._alone


def prefixed(prefix: str, name: str) -> str:
    return prefix + name.encode()[-(NAME_BYTES - len(prefix)) :].decode(errors="ignore") if prefix else name
