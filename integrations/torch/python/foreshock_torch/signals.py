"""Exceptions that are the trainer's, although they are raised while our code runs."""

from __future__ import annotations

from signal import getsignal, valid_signals
from typing import Any

_PACKAGE = __name__.rpartition(".")[0] + "."


def _codes_of_handlers() -> list[Any]:
    handlers = [getsignal(number) for number in valid_signals()]
    functions = [getattr(each, "func", getattr(each, "__func__", each)) for each in handlers]
    return [getattr(each, "__code__", getattr(type(each).__call__, "__code__", None)) for each in functions]


def is_of_trainer(error: BaseException) -> bool:
    """Whether a signal handler or another thread of the trainer raised it. Python runs a handler, and raises what
    another thread sends (PyThreadState_SetAsyncExc), wherever the main thread happens to be: here, for once.

    A handler is one that is installed now, or a function that was called with the frame that it interrupted (it may
    have been replaced since). What another thread sends is raised in a frame of ours and of a class that nothing which
    we call raises.
    """
    try:
        return not isinstance(error, RecursionError) and _is_of_trainer(error)
    except RecursionError:  # of ours, since the trainer's own stack is nearly full
        return False


def _is_of_trainer(error: BaseException) -> bool:
    codes = _codes_of_handlers()
    trace, interrupted = error.__traceback__, None
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in codes:
            return True
        if interrupted is not None and any(value is interrupted for value in frame.f_locals.values()):
            return True
        trace, interrupted = trace.tb_next, frame
    is_ours = interrupted is not None and str(interrupted.f_globals.get("__name__")).startswith(_PACKAGE)
    return is_ours and type(error).__module__.partition(".")[0] not in ("builtins", "torch")


class suppress_ours:  # noqa: N801, as contextlib.suppress
    """contextlib.suppress(Exception), which lets the trainer's exceptions through."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return isinstance(error, Exception) and not is_of_trainer(error)
