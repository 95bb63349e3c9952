"""Recognizes exceptions that belong to the training although they are raised while the helper's code runs."""

from __future__ import annotations

from signal import getsignal, valid_signals
from typing import Any

_PACKAGE = __name__.rpartition(".")[0] + "."  # "foreshock_torch.", with which the names of the helper's modules begin


def _codes_of_handlers() -> list[Any]:
    """Code objects of the installed signal handlers; None for a handler without Python code."""
    handlers = [getsignal(number) for number in valid_signals()]
    # `func` unwraps a functools.partial, `__func__` a method. Any other callable object runs its class's __call__.
    functions = [getattr(handler, "func", getattr(handler, "__func__", handler)) for handler in handlers]
    return [getattr(f, "__code__", getattr(type(f).__call__, "__code__", None)) for f in functions]


def is_of_trainer(error: BaseException) -> bool:
    """Whether a signal handler or another thread of the training raised the exception. If so, the caller must reraise.

    Python runs signal handlers, and raises exceptions sent by another thread (PyThreadState_SetAsyncExc), at any point
    of the main thread's code, so also inside the helper. A function in the traceback is a signal handler if it is
    installed as one now, or if the frame that it interrupted is among its arguments (a handler replaced since then).
    An exception counts as sent by another thread if the innermost frame is the helper's own code and the exception's
    class is neither builtin nor torch's.
    """
    try:
        # The helper's own calls can exceed a nearly full stack, so a RecursionError is never attributed to the trainer.
        return not isinstance(error, RecursionError) and _is_of_trainer(error)
    except RecursionError:  # raised by _is_of_trainer(), because the training's stack is nearly full
        return False


def _is_of_trainer(error: BaseException) -> bool:
    codes = _codes_of_handlers()
    trace, caller = error.__traceback__, None
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in codes:
            return True
        # Python passes the interrupted frame to a signal handler; in the traceback that frame is the handler's caller.
        if caller is not None and any(value is caller for value in frame.f_locals.values()):
            return True
        trace, caller = trace.tb_next, frame
    innermost = caller
    is_in_helper = innermost is not None and str(innermost.f_globals.get("__name__")).startswith(_PACKAGE)
    return is_in_helper and type(error).__module__.partition(".")[0] not in ("builtins", "torch")


class suppress_ours:  # noqa: N801, as contextlib.suppress
    """As contextlib.suppress(Exception), but lets exceptions of the training (is_of_trainer) pass."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return isinstance(error, Exception) and not is_of_trainer(error)
