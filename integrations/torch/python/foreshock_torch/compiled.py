"""Steps of a compiled optimizer. torch.compile traces the step's hooks away; nothing of ours runs in such a step.

But what a hook stores into an object is stored again after every run of the graph, without a graph break, a node in
the graph or a guard on a value. So the traced hook puts a new token into a box, the old one dies, and the callback of
a weak reference to it runs: after every compiled step, outside the graph, in the thread that trains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from .signals import is_of_trainer


class Token:
    __slots__ = ("__weakref__",)


class Box:
    """`optimizer` is stored before `token`, so it is there when the old token dies."""

    __slots__ = ("optimizer", "token")


box = Box()
box.optimizer, box.token = None, Token()


def keep_out(frames: Any, function: Any) -> None:
    """Tells Dynamo to leave the function and what it calls alone: it may run inside a compiled region."""
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    else:
        frames.skip_code(function.__code__)


class Watch:
    """Calls `stepped(optimizer)` after every compiled step, until it is switched off."""

    def __init__(self, torch: Any, stepped: Callable[[Any], None], call_back: Callable[[Any], Any]) -> None:
        """`call_back` makes of a function the callback of a weak reference (Core.call_back)."""
        self._call_back = call_back(self._died)
        self._frames = torch._C._dynamo.eval_frame
        self._stepped = stepped
        self.on = True
        keep_out(self._frames, Watch._died)
        self._again()

    def _again(self) -> None:
        self._reference = ref(box.token, self._call_back)

    def _died(self, _: Any) -> None:
        try:
            if not self.on:
                return
            before = self._frames.set_eval_frame(None)
            try:
                self._again()
                optimizer, box.optimizer = box.optimizer, None
                if optimizer is not None:
                    self._stepped(optimizer)
            finally:
                self._frames.set_eval_frame(before)
        except Exception as error:
            if is_of_trainer is not None and is_of_trainer(error):  # at the end of the process all names are gone
                raise
            self.on = False


def step_traced(optimizer: Any) -> None:
    """Called by the step hook while Dynamo traces it; never runs by itself."""
    box.optimizer = optimizer
    box.token = Token()
