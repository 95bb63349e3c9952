"""Recognizes exceptions that belong to the training although they are raised while the helper's code runs."""

from __future__ import annotations

from signal import getsignal, valid_signals
from typing import Any

_PACKAGE = __name__.rpartition(".")[0] + "."


def _codes_of_handlers() -> list[Any]:
    """The code of the installed signal handlers: functions, methods, functools.partial, or other callable objects."""
    handlers = [getsignal(number) for number in valid_signals()]
    functions = [getattr(each, "func", getattr(each, "__func__", each)) for each in handlers]
    return [getattr(each, "__code__", getattr(type(each).__call__, "__code__", None)) for each in functions]


def is_of_trainer(error: BaseException) -> bool:
    """Whether a signal handler or another thread of the training raised the exception. It must then be raised again.

    Python runs signal handlers, and raises exceptions sent by another thread (PyThreadState_SetAsyncExc), at any point
    of the main thread's code, so also inside the helper. A signal handler is recognized in the traceback: it is
    installed now, or it was called with the interrupted frame as an argument (it may have been replaced since). An
    exception sent by another thread is raised in a frame of the helper, and its class is neither builtin nor torch's.
    """
    try:
        return not isinstance(error, RecursionError) and _is_of_trainer(error)
    except RecursionError:  # raised by this check, because the training's stack is nearly full
        return False


def _is_of_trainer(error: BaseException) -> bool:
    codes = _codes_of_handlers()
    trace, caller = error.__traceback__, None
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in codes:
            return True
        # A handler has the interrupted frame, which is its caller here, among its arguments.
        if caller is not None and any(value is caller for value in frame.f_locals.values()):
            return True
        trace, caller = trace.tb_next, frame
    innermost = caller
    is_ours = innermost is not None and str(innermost.f_globals.get("__name__")).startswith(_PACKAGE)
    return is_ours and type(error).__module__.partition(".")[0] not in ("builtins", "torch")


class suppress_ours:  # noqa: N801, as contextlib.suppress
    """contextlib.suppress(Exception) that lets exceptions of the training through (see is_of_trainer)."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return isinstance(error, Exception) and not is_of_trainer(error)
