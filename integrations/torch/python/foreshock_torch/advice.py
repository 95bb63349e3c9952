"""foreshock.advice(): returns the agent's warning level, so that the training can act on it."""

from __future__ import annotations

from typing import Any, NamedTuple

from .signals import is_of_trainer

_LEVELS = ("quiet", "watch", "warn")
_ABI = 1  # version of the structure foreshock_advice (hook.h): value of its member `version`

_read_advice: Any = None  # foreshock_read_advice() of libforeshock.so, once found; it fills in a foreshock_advice
_AdviceStruct: Any = None  # the ctypes class of the structure foreshock_advice


class Advice(NamedTuple):
    """The detector with the highest level among all ranks of this node."""

    level: str  # "quiet", "watch" or "warn"
    detector: str | None  # "output_error_drift", ...; None if the level is "quiet"
    layer: str | None  # "003", ...; None: the signal belongs to no layer
    rank: int | None  # the rank whose detector this is; None if the level is "quiet"
    since_step: int  # first step at this level; does not change while the warning lasts
    from_step: int  # first step to act in: if each rank of a node waits for it, all act in the same step
    age_steps: int  # steps that the agent has not read yet; if many, the agent has stopped and the advice is old
    score: float  # value of the detector as a share of its limit; it begins to warn at 1


def _prepare() -> bool:
    """Sets _read_advice and _AdviceStruct. False: libforeshock.so, which `foreshock run` preloads, is not loaded."""
    global _read_advice, _AdviceStruct
    if _read_advice is not None:
        return True
    import ctypes as c

    class AdviceStruct(c.Structure):
        _fields_ = [
            ("size", c.c_uint32), ("version", c.c_uint32), ("level", c.c_uint32), ("rank", c.c_int32),
            ("since_step", c.c_int64), ("from_step", c.c_int64), ("age_steps", c.c_uint64), ("score", c.c_double),
            ("detector", c.c_char * 32), ("layer", c.c_char * 32),
        ]  # fmt: skip

    read = getattr(c.PyDLL(None), "foreshock_read_advice", None)  # PyDLL keeps the GIL; None: all loaded libraries
    if read is None:
        return False
    read.argtypes, read.restype = [c.POINTER(AdviceStruct)], c.c_int
    _AdviceStruct, _read_advice = AdviceStruct, read
    return True


def _advice_or_none() -> Advice | None:
    if not _prepare():
        return None
    import ctypes

    raw = _AdviceStruct(size=ctypes.sizeof(_AdviceStruct), version=_ABI)
    if not _read_advice(ctypes.byref(raw)) or raw.level >= len(_LEVELS):
        return None  # no agent has read this process yet, or the agent is writing the advice at this moment
    is_quiet = raw.level == 0
    return Advice(
        _LEVELS[raw.level],
        raw.detector.decode("ascii", "replace") or None,
        raw.layer.decode("ascii", "replace") or None,
        None if is_quiet else raw.rank,
        raw.since_step,
        raw.from_step,
        raw.age_steps,
        raw.score,
    )


def advice() -> Advice | None:
    """The current warning level; None if there is no `foreshock run`, or if the agent (the process that judges the
    training) has written no advice yet or is writing it at this moment.

    Takes a few microseconds and does not wait. Call it after a step, outside of compiled code. Foreshock itself never
    acts on the result. Each node has its own agent, so ranks on several nodes must agree before they act: by an
    all-reduce of the largest level and the largest from_step.
    """
    try:
        return _advice_or_none()
    except Exception as error:
        if is_of_trainer(error):  # raised by a signal handler or another thread of the training
            raise
        return None
