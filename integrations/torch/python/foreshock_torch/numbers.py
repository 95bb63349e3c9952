"""Converts values of any type that a training passes into numbers, or None. Never waits for a device."""

from __future__ import annotations

import operator
from typing import Any

from .signals import is_of_trainer  # whether the training itself raised an exception, which must be raised again

LARGEST_STEP = 2**62 - 1  # libforeshock.so takes a larger step number as "unknown" (hook.h)


def number_on_cpu(torch: Any, value: Any) -> float | None:
    """The value of a number or of a one-element CPU tensor, which may be infinite or NaN; None for anything else."""
    try:
        if isinstance(value, torch.Tensor):
            is_plain = type(value) in (torch.Tensor, torch.nn.Parameter)  # a subclass may run code of the training
            if not is_plain or value.device.type != "cpu" or value.numel() != 1 or value.is_complex():
                return None
            return float(value.item())
        is_number = type(value) in (int, float, bool) or type(value).__module__ == "numpy"
        return float(value) if is_number else None  # __float__ of another type would run code of the training
    except Exception as error:
        if is_of_trainer(error):
            raise
        return None


def step_number(torch: Any, value: Any) -> int | None:
    """The value as a count of steps, without its fraction. None if it is unknown, outside of 0 to LARGEST_STEP, or a
    float of 2**53 or more, which may be inexact."""
    step = _whole_number(value)
    # The comparison with 2**53 also rejects NaN.
    if step is None and (real := number_on_cpu(torch, value)) is not None and abs(real) < 2.0**53:
        step = int(real)
    return step if step is not None and 0 <= step <= LARGEST_STEP else None


def low_64_bits(value: Any) -> int | None:
    """The low 64 bits of a whole number (of a negative one, in two's complement); None for anything else."""
    whole = _whole_number(value)
    return None if whole is None else whole & (2**64 - 1)


def _whole_number(value: Any) -> int | None:
    """The value of any type with __index__, such as NumPy's integers, except tensors, which may be on a device."""
    cls = type(value)
    if cls is int:
        return value
    # Tensors have "dim". Both are checked before operator.index() is called, because an exception from it is slow.
    if not hasattr(cls, "__index__") or hasattr(cls, "dim"):
        return None
    try:
        return operator.index(value)
    except Exception as error:
        if is_of_trainer(error):
            raise
        return None
