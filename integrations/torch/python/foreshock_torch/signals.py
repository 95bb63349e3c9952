"""Exceptions that are not ours."""

from __future__ import annotations


def is_of_signal(error: BaseException) -> bool:
    """Raised by a signal handler of the trainer, which Python runs wherever it happens to be: here, for once."""
    import signal

    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    functions = [getattr(each, "func", getattr(each, "__func__", each)) for each in handlers]
    codes = [getattr(each, "__code__", getattr(type(each).__call__, "__code__", None)) for each in functions]
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None
