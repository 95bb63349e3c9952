"""Numbers that a trainer passes in, whatever they are: a usable one, or None. Nothing here waits for a device."""

from __future__ import annotations

import operator
from typing import Any

from .signals import is_of_trainer

MOST_STEPS = 2**62 - 1  # beyond, hook.h takes it for unknown


def on_cpu(torch: Any, value: Any) -> float | None:
    """A number, or the value of a one-element CPU tensor; not finite is a value too."""
    try:
        if isinstance(value, torch.Tensor):
            plain = type(value) in (torch.Tensor, torch.nn.Parameter)
            if not plain or value.device.type != "cpu" or value.numel() != 1 or value.is_complex():
                return None
            return float(value.item())
        is_plain = type(value) in (int, float, bool) or type(value).__module__ == "numpy"
        return float(value) if is_plain else None  # another one's __float__ is the trainer's to call
    except Exception as error:
        if is_of_trainer(error):
            raise
        return None


def step_number(torch: Any, value: Any) -> int | None:
    """A number of steps; None for what cannot be one."""
    step = _index(value)
    if step is None and (real := on_cpu(torch, value)) is not None and abs(real) < 2.0**53:
        step = int(real)
    return step if step is not None and 0 <= step <= MOST_STEPS else None


def word(value: Any) -> int | None:
    """The low 64 bits of a whole number."""
    whole = _index(value)
    return None if whole is None else whole & (2**64 - 1)


def _index(value: Any) -> int | None:
    """The whole number that a Python or NumPy integer is; a tensor, which may be on a device, is none."""
    kind = type(value)
    if kind is int:
        return value
    if not hasattr(kind, "__index__") or hasattr(kind, "dim"):  # an exception here would cost more than all else
        return None
    try:
        return operator.index(value)
    except Exception as error:
        if is_of_trainer(error):
            raise
        return None
