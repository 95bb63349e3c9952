"""Acts on foreshock.advice(), the detectors' warning level. plain_loop.py and lightning_callback.py import this file.
A detector may raise a false alarm (docs/detectors.md), so choose an action that does not harm a healthy training."""

from __future__ import annotations

from collections.abc import Callable

import foreshock
import torch
from foreshock_torch.advice import Advice
from torch import distributed

LEVELS = ("quiet", "watch", "warn")
# Advice is too old to act on if the agent (the process that judges the training) is more steps behind than this.
STALE_STEPS = 256


def device_of_group() -> str:
    """The device on which the process group reduces tensors: the CPU if possible, else (NCCL) this rank's device."""
    backend = distributed.get_backend()
    if ":" in backend:  # one backend for each device: cpu:gloo,cuda:nccl
        devices = [pair.partition(":")[0] for pair in backend.split(",")]
    else:
        devices = distributed.Backend.backend_capability.get(backend, ["cpu"])
    return "cpu" if "cpu" in devices else devices[0]


def agreed_advice() -> Advice | None:
    """Without torch.distributed: this process's advice. Else the earliest warning of all ranks, the same on every rank;
    None if no rank has a warning. Each rank must call agreed_advice() after each step, because it communicates."""
    mine = foreshock.advice()
    if not (distributed.is_available() and distributed.is_initialized()):
        return mine
    # from_step: first step at which this rank may act. age_steps: steps that the agent has not read yet.
    numbers = [LEVELS.index(mine.level), mine.from_step, mine.age_steps] if mine else [0, 0, 0]
    maximum = torch.tensor(numbers, dtype=torch.int64, device=device_of_group())
    distributed.all_reduce(maximum, distributed.ReduceOp.MAX)
    level, from_step, age = maximum.tolist()
    if LEVELS[level] != "warn":  # the same on all ranks, since all have computed the same maximum
        return None
    by_rank: list[Advice | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(by_rank, mine)
    earliest = min((each for each in by_rank if each and each.level == "warn"), key=lambda each: each.since_step)
    return earliest._replace(from_step=from_step, age_steps=age)  # both are maxima, so all ranks act in the same step


class Listener:
    """Calls act(advice) once for each warning, on all ranks at the same step."""

    def __init__(self, act: Callable[[Advice], None]) -> None:
        self.act = act
        self.acted: list[Advice] = []  # the warnings for which act() was called

    def step_ended(self, step: int) -> None:
        """Call it after each step. `step`: number of optimizer steps done, as the status page shows it."""
        advice = agreed_advice()
        if advice is None or advice.level != "warn" or advice.age_steps > STALE_STEPS or step < advice.from_step:
            return
        warning = (advice.detector, advice.layer, advice.since_step)
        if any((each.detector, each.layer, each.since_step) == warning for each in self.acted):
            return
        self.acted.append(advice)
        self.act(advice)
