"""foreshock.advice(): what the agent makes of the training, for the trainer to act on if it wants to."""

from __future__ import annotations

from typing import Any, NamedTuple

from .signals import is_of_trainer

_LEVELS = ("quiet", "watch", "warn")
_ABI = 1

_read: Any = None  # the function of libforeshock.so
_Record: Any = None


class Advice(NamedTuple):
    """The loudest detector of any rank of this node."""

    level: str  # "quiet", "watch" or "warn"
    detector: str | None  # "output_error_drift", ...; None: quiet
    layer: str | None  # "003", ...; None: of no layer
    rank: int | None  # whose signal it is
    since_step: int  # at this level; of one warning it stays the same
    from_step: int  # the ranks of a node act together if none does before this step
    age_steps: int  # steps that the agent has not seen yet; many: it is gone, and the rest is of then
    score: float  # 1 is where the detector begins to warn


def _prepare() -> bool:
    """Finds the library, which `foreshock run` has loaded before Python began."""
    global _read, _Record
    if _read is not None:
        return True
    import ctypes as c

    class Record(c.Structure):
        _fields_ = [
            ("size", c.c_uint32),
            ("version", c.c_uint32),
            ("level", c.c_uint32),
            ("rank", c.c_int32),
            ("since_step", c.c_int64),
            ("from_step", c.c_int64),
            ("age_steps", c.c_uint64),
            ("score", c.c_double),
            ("detector", c.c_char * 32),
            ("layer", c.c_char * 32),
        ]

    read = getattr(c.PyDLL(None), "foreshock_read_advice", None)
    if read is None:
        return False
    read.argtypes, read.restype = [c.POINTER(Record)], c.c_int
    _Record, _read = Record, read
    return True


def _ask() -> Advice | None:
    if not _prepare():
        return None
    import ctypes

    record = _Record(size=ctypes.sizeof(_Record), version=_ABI)
    if not _read(ctypes.byref(record)) or record.level >= len(_LEVELS):
        return None
    is_quiet = record.level == 0
    return Advice(
        _LEVELS[record.level],
        record.detector.decode("ascii", "replace") or None,
        record.layer.decode("ascii", "replace") or None,
        None if is_quiet else record.rank,
        record.since_step,
        record.from_step,
        record.age_steps,
        record.score,
    )


def advice() -> Advice | None:
    """What the detectors say now; None where nobody is listening: no `foreshock run`, an agent that has not come yet.

    Takes a few microseconds and waits for nothing; call it where the step has ended, outside of compiled code. Nobody
    but the caller acts on it. Ranks on several nodes hear different agents: let them agree (an all-reduce of the
    largest level and the largest from_step) before they act.
    """
    try:
        return _ask()
    except Exception as error:
        if is_of_trainer(error):
            raise
        return None
