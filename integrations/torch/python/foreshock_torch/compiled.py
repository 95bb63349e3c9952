"""Detects steps of a compiled optimizer. Dynamo, the tracer of torch.compile, runs the step hooks only while it traces.

If a hook stores into an object while Dynamo traces it, Dynamo repeats that store after each run of the compiled graph.
Such a store needs no graph break, no node in the graph and no guard on a value. So the traced hook (step_traced) stores
a new token in a box. The store destroys the old token, and the callback of a weak reference to the old token runs:
after every compiled step, outside the graph, in the training's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from .signals import is_of_trainer


class Token:
    __slots__ = ("__weakref__",)


class Box:
    """`optimizer` must be stored before `token`: replacing the token runs the callback, which reads `optimizer`."""

    __slots__ = ("optimizer", "token")


box = Box()  # into which step_traced() stores
box.optimizer, box.token = None, Token()


def skip_in_dynamo(frames: Any, function: Any) -> None:
    """Makes Dynamo (`frames`: torch._C._dynamo.eval_frame) skip a function that may run inside a compiled region."""
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    else:
        frames.skip_code(function.__code__)


class Watch:
    """Calls `stepped(optimizer)` after every compiled step, until a call has failed by an error of the helper."""

    def __init__(self, torch: Any, stepped: Callable[[Any], None], weakref_callback: Callable[[Any], Any]) -> None:
        """`weakref_callback`: Core.weakref_callback, which turns a function into the callback of a weak reference."""
        self._callback = weakref_callback(self._on_token_death)
        self._frames = torch._C._dynamo.eval_frame
        self._stepped = stepped
        self.is_on = True
        skip_in_dynamo(self._frames, Watch._on_token_death)
        self._watch_token()

    def _watch_token(self) -> None:
        self._reference = ref(box.token, self._callback)

    def _on_token_death(self, _: Any) -> None:
        try:
            if not self.is_on:
                return
            tracer = self._frames.set_eval_frame(None)  # switches Dynamo off: it must not trace the code below
            try:
                self._watch_token()
                optimizer, box.optimizer = box.optimizer, None
                if optimizer is not None:
                    self._stepped(optimizer)
            finally:
                self._frames.set_eval_frame(tracer)
        except Exception as error:  # may come from a signal handler or another thread of the training
            if is_of_trainer is not None and is_of_trainer(error):  # at process exit a global may be None
                raise
            self.is_on = False


def step_traced(optimizer: Any) -> None:
    """Called by the optimizer's step hook while Dynamo traces the hook. Dynamo then repeats both stores."""
    box.optimizer = optimizer
    box.token = Token()
