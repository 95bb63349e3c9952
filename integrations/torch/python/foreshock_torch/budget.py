"""Limits the time that the helper (this package) spends. The core (libforeshock.so) itself limits only sampling."""

from __future__ import annotations

from time import perf_counter_ns

DEFAULT_LIMIT = 0.01  # default of --max-slowdown, as a ratio


def limit_of(text: str | None) -> float:
    """The ratio in `text`, the value of FORESHOCK_MAX_SLOWDOWN, parsed as the core does; DEFAULT_LIMIT if invalid."""
    number = (text or "").removesuffix("%").removesuffix(" ")
    whole, _, part = number.partition(".")
    is_number = number.isascii() and whole.isdigit() and (not part or part.isdigit())
    value = float(number) / (100 if text and text.endswith("%") else 1) if is_number else DEFAULT_LIMIT
    return value if value <= 1 else DEFAULT_LIMIT


class OverheadGuard:
    """Detects, once, that the helper takes several times the allowed time. The caller then stops describing tensors.

    Own time is the time spent in the helper; all other time is the training's. Own time is too much if it exceeds
    EXCESS_FACTOR x limit x the training's time in two windows in a row, or FLAGRANT_FACTOR x limit x that time in one
    window, which need not have ended. EXCESS_FACTOR is above 3, because denser sampling after a warning may take three
    times the limit.

    Set-up steps do not count, and neither does the most expensive step of a window: naming a new model, a garbage
    collection during our work and a stopped process are exceptions. A limit of 100 % allows everything.
    """

    EXCESS_FACTOR, FLAGRANT_FACTOR = 5, 10
    # Own time below this is always allowed: with EXCESS_FACTOR the own time since set-up, with FLAGRANT_FACTOR that of
    # the window.
    LEAST_NS = 500_000_000
    SET_UP_STEPS = 6  # number of set-up steps: the first ones, in which names, modules and further optimizers are found
    WINDOW_STEPS, WINDOW_NS = 100, 1_000_000_000  # minimum length of a window: in steps, and in nanoseconds

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._steps = 0
        self._own_ns = self._last_now_ns = 0  # own time and clock time at the last call
        self._set_up_ns = 0  # own time of the set-up steps
        self._has_found_excess = self._was_exceeded = False  # _was_exceeded: in the previous window
        self._begin_window()

    def _begin_window(self) -> None:
        # Of the window: its steps, own time, own time of its most expensive step, and length.
        self._window_steps = self._window_own_ns = self._max_step_ns = self._window_ns = 0

    def finds_excess(self, own_ns: int, now_ns: int, steps: int = 1, max_step_ns: int | None = None) -> bool:
        """Call it when steps have ended. Returns True once, in the call that finds too much own time.

        `own_ns`: total own time so far. `now_ns`: clock time. `steps`: steps since the last call. `max_step_ns`: own
        time of the most expensive of these steps; None if there was one step.
        """
        ours, lasted = own_ns - self._own_ns, now_ns - self._last_now_ns  # own time and clock time since the last call
        self._own_ns, self._last_now_ns = own_ns, now_ns
        self._steps += steps
        if self._steps <= self.SET_UP_STEPS:
            self._set_up_ns = own_ns
        if self._has_found_excess or self._limit >= 1 or self._steps <= self.SET_UP_STEPS:
            return False
        self._window_steps += steps
        self._window_own_ns += ours
        self._window_ns += lasted
        self._max_step_ns = max(self._max_step_ns, ours if max_step_ns is None else max_step_ns)
        self._has_found_excess = self._is_exceeded()
        return self._has_found_excess

    def _is_exceeded(self) -> bool:
        """Whether own time is too much. Begins a new window if one has ended. `ours`, `theirs`: times in the window."""
        ours, theirs = self._window_own_ns - self._max_step_ns, max(self._window_ns - self._window_own_ns, 0)
        if ours >= self.LEAST_NS and ours > self.FLAGRANT_FACTOR * self._limit * theirs:
            return True
        if self._window_steps < self.WINDOW_STEPS or self._window_ns < self.WINDOW_NS:
            return False  # the window has not ended
        since_set_up = self._own_ns - self._set_up_ns - self._max_step_ns
        is_exceeded = since_set_up >= self.LEAST_NS and ours > self.EXCESS_FACTOR * self._limit * theirs
        was_exceeded = self._was_exceeded
        self._was_exceeded = is_exceeded
        self._begin_window()
        return is_exceeded and was_exceeded


class RateLimit:
    """Limits how often expensive work is repeated, such as naming the tensors. The first `free` repetitions are always
    allowed. A later one is allowed if all earlier ones together took at most `share` of the time since construction."""

    def __init__(self, free: int, share: float = DEFAULT_LIMIT) -> None:
        self._free = free
        self._share = share
        self._repetitions = 0
        self._spent_ns = 0
        self._began_ns = perf_counter_ns()

    def allows(self) -> bool:
        elapsed = perf_counter_ns() - self._began_ns
        return self._repetitions < self._free or self._spent_ns <= self._share * elapsed

    def spend(self, nanoseconds: int) -> None:
        """Call it after each repetition with its duration."""
        self._repetitions += 1
        self._spent_ns += nanoseconds
