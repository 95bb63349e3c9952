"""Detects when a module whose parameters have names is destroyed. Another tensor may then get the address
(tensor._cdata) by which the core finds the name, so the name would belong to the wrong tensor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

from .compiled import skip_in_dynamo
from .signals import is_of_trainer


class Owners:
    """Calls `lost` once, when for the first time a named parameter has lost all modules that contain it.

    The call comes before the parameter's address can be reused, in the thread that destroys the module. The weak
    references are to modules, because torch.utils.swap_tensors refuses tensors that have weak references.
    """

    def __init__(self, torch: Any, lost: Callable[[], None], call_back: Callable[[Any], Any]) -> None:
        """`call_back` turns a function into the callback of a weak reference (Core.call_back)."""
        self._call_back = call_back
        self._frames = torch._C._dynamo.eval_frame
        self._lost = lost
        skip_in_dynamo(self._frames, Owners._on_module_death)
        self._references: list[Any] = []
        self.has_lost = False

    def watch(self, owners: Iterable[tuple[Any, list[int]]]) -> None:
        """Watches `owners` instead of the previous ones: (module, addresses of its own parameters that have names)."""
        self._references, self.has_lost = [], False
        left: dict[int, int] = {}  # {address: number of modules that still contain the parameter}
        for module, addresses in owners:
            for address in addresses:
                left[address] = left.get(address, 0) + 1
            if addresses:
                gone = functools.partial(self._on_module_death, addresses, left)
                self._references.append(ref(module, self._call_back(gone)))

    def _on_module_death(self, addresses: list[int], left: dict[int, int], _: Any) -> None:
        try:
            for address in addresses:
                left[address] -= 1
            if self.has_lost or all(left[address] > 0 for address in addresses):
                return
            self.has_lost = True
            before = self._frames.set_eval_frame(None)  # Dynamo must not trace what follows
            try:
                self._lost()
            finally:
                self._frames.set_eval_frame(before)
        except Exception as error:
            self.has_lost = True
            if is_of_trainer is not None and is_of_trainer(error):  # at process exit a global may be None
                raise
