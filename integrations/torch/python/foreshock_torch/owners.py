"""The modules whose parameters have names. Once one is gone, what comes to lie at its parameters' addresses is another
tensor, of another name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

from .compiled import keep_out
from .signals import is_of_trainer


class Owners:
    """By weak references to the modules: torch.utils.swap_tensors refuses a tensor that has one. `lost` is called once
    when the last module is gone that a tensor with a name was in: before its address can be another's, on whatever
    thread drops the module."""

    def __init__(self, torch: Any, lost: Callable[[], None], call_back: Callable[[Any], Any]) -> None:
        """`call_back` makes of a function the callback of a weak reference (Core.call_back)."""
        self._call_back = call_back
        self._frames = torch._C._dynamo.eval_frame
        self._lost = lost
        keep_out(self._frames, Owners._gone)
        self._references: list[Any] = []
        self.has_lost = False

    def watch(self, owners: Iterable[tuple[Any, list[int]]]) -> None:
        """(module, addresses of its own that have names). Those of before are not watched any more."""
        self._references, left, self.has_lost = [], {}, False
        for module, addresses in owners:
            for address in addresses:
                left[address] = left.get(address, 0) + 1
            if addresses:
                gone = functools.partial(self._gone, addresses, left)
                self._references.append(ref(module, self._call_back(gone)))

    def _gone(self, addresses: list[int], left: dict[int, int], _: Any) -> None:
        try:
            for address in addresses:
                left[address] -= 1
            if self.has_lost or all(left[address] > 0 for address in addresses):
                return
            self.has_lost = True
            before = self._frames.set_eval_frame(None)
            try:
                self._lost()
            finally:
                self._frames.set_eval_frame(before)
        except Exception as error:
            self.has_lost = True
            if is_of_trainer is not None and is_of_trainer(error):  # at the end of the process all names are gone
                raise
