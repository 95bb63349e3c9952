"""An optimizer that is called several times in one step, each time with another part of its parameters in its groups.

DeepSpeed's ZeRO does so: once for each group, in stage 3 for each sub-group. The parts are flat copies of many
parameters, or of this rank's share of them.
"""

from __future__ import annotations

from typing import Any

from .others import parameters_of


class Pieces:
    """What the optimizer that ticks has stepped since the last backward pass."""

    def __init__(self) -> None:
        self.addresses: list[int] = []  # of all pieces, once there are several
        self._first: list[int] = []

    def forget(self) -> None:
        """Another optimizer ticks."""
        self.addresses = []

    def begin(self, addresses: list[int]) -> None:
        """The first call of a step."""
        self._first = addresses

    def go_on(self, optimizer: Any) -> None:
        """Another one."""
        before = self.addresses or self._first
        known = set(before)
        new = [p._cdata for p in parameters_of(optimizer) if p._cdata not in known]
        if new:
            self.addresses = before + new
