"""The protocol: what is an event, what is scored, what counts as a hit, and how sure one can be.

Fixed before any training: HORIZON, AFTERMATH, FIRST_STEP, the rule of loss events (detect/loss_event.h, loss_rise.h).
The rule of excess over the twin came after one training, `following-bias`, in which that rule had missed the end of it.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

HORIZON = 64  # steps before an onset in which an alarm must begin to have foretold it
AFTERMATH = 64  # steps after the loss has recovered in which nothing is scored
FIRST_STEP = 160  # before it no event could be: its rule's window of 128 losses is filling
# A failure that the rule of loss events misses: the loss is so much above the twin's, on so many steps in a row.
EXCESS, EXCESS_MEAN, EXCESS_LASTS = 0.1, 16, 32
RESAMPLES, LEAST_GROUPS = 1000, 4
Z95 = 1.959964


@dataclass
class Training:
    """One training, reduced to what is scored."""

    recipe: str
    arm: str
    seed: int
    last_step: int
    onsets: list[int]  # of loss events, ascending, each after the aftermath of the one before
    masked: list[tuple[int, int]]  # steps [from, to) from an onset to the end of its aftermath
    alarms: dict[str, list[int]] = field(default_factory=dict)  # by detector

    def is_scored(self, step: int) -> bool:
        return FIRST_STEP <= step <= self.last_step and not any(a <= step < b for a, b in self.masked)

    def window(self, onset: int) -> list[int]:
        return [step for step in range(onset - HORIZON, onset) if self.is_scored(step)]

    def scored_steps(self) -> list[int]:
        return [step for step in range(FIRST_STEP, self.last_step + 1) if self.is_scored(step)]


def recovered(losses: dict[int, float], onset: int, last: int) -> int:
    """First step of three in a row with losses no larger than the largest of the 128 before the onset; `last` + 1 if
    there is none."""
    before = [losses[s] for s in range(onset - 128, onset) if math.isfinite(losses.get(s, math.nan))]
    usual, in_row = max(before, default=-math.inf), 0
    for step in range(onset + 1, last + 1):
        in_row = in_row + 1 if losses.get(step, math.inf) <= usual else 0
        if in_row == 3:
            return step - 2
    return last + 1


def masks(losses: dict[int, float], found: Iterable[int], last: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Onsets that begin something new, and the stretches that they spoil."""
    onsets: list[int] = []
    masked: list[tuple[int, int]] = []
    for onset in sorted(found):
        if masked and onset < masked[-1][1]:
            continue
        onsets.append(onset)
        masked.append((onset, min(last + 1, recovered(losses, onset, last) + AFTERMATH)))
    return onsets, masked


def excess(losses: dict[int, float], twin: dict[int, float]) -> int | None:
    """First step of the first EXCESS_MEAN losses whose mean is above the twin's by EXCESS, if those of the next
    EXCESS_LASTS steps are so too; None: there are none. It began there or later: no lead is flattered. Until the fault
    begins the losses are the same to the bit."""
    steps = sorted(set(losses) & set(twin))
    in_row = 0
    for n in range(EXCESS_MEAN - 1, len(steps)):
        last = steps[n - EXCESS_MEAN + 1 : n + 1]
        # What is not finite is in excess: the comparison is false then.
        usual = sum(losses[s] for s in last) <= (1 + EXCESS) * sum(twin[s] for s in last)
        in_row = 0 if usual or steps[n] < FIRST_STEP else in_row + 1
        if in_row == EXCESS_LASTS:
            return steps[n - EXCESS_LASTS - EXCESS_MEAN + 2]
    return None


def wilson(hits: int, of: int) -> tuple[float, float]:
    """95 % interval of a share."""
    if of == 0:
        return math.nan, math.nan
    share, z2 = hits / of, Z95 * Z95
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = Z95 / (1 + z2 / of) * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def most_expected(count: int) -> float:
    """Upper 95 % bound (one-sided) of a Poisson law's mean of which `count` were seen: the mean that gives so few only
    once in twenty."""

    def at_most(mean: float) -> float:
        # Each term by its logarithm: exp(-mean) alone is 0 from 746 on.
        return sum(math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(count + 1))

    low, high = 0.0, 10.0 + 3.0 * count
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(middle) > 0.05 else (low, middle)
    return high


@dataclass
class Tally:
    """Sums of one detector over trainings; what is asked of it are ratios of them."""

    events: int = 0  # whose window has a scored step
    hits: int = 0
    leads: list[int] = field(default_factory=list)
    twin_hits: int = 0  # alarms of the twins in the same windows
    alarms: int = 0  # scored, both arms
    right: int = 0  # those that an onset follows within the horizon
    steps: int = 0  # scored, both arms
    steps_before: int = 0  # those that an onset follows within the horizon
    false: int = 0  # alarms in twins
    twin_steps: int = 0

    def add(self, other: Tally) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def lift(self) -> float:
        """How much oftener an event follows an alarm than it follows any scored step."""
        if self.alarms == 0 or self.steps_before == 0:
            return math.nan
        return self.right / self.alarms / (self.steps_before / self.steps)


def tally(fault: Training, twin: Training | None, detector: str) -> Tally:
    found = Tally()
    for training in filter(None, (fault, twin)):
        scored = training.scored_steps()
        before = {step for onset in training.onsets for step in training.window(onset)}
        own = [step for step in training.alarms.get(detector, []) if training.is_scored(step)]
        found.steps += len(scored)
        found.steps_before += len(before)
        found.alarms += len(own)
        found.right += sum(step in before for step in own)
        if training is twin:
            found.twin_steps += len(scored) - len(before)
            found.false += sum(step not in before for step in own)
        for onset in training.onsets if training is fault else []:
            window = training.window(onset)
            if not window:
                continue
            inside = [step for step in own if step in set(window)]
            found.events += 1
            found.hits += bool(inside)
            found.leads += [onset - inside[0]] if inside else []
            found.twin_hits += twin is not None and any(step in set(window) for step in twin.alarms.get(detector, []))
    return found


def pooled(tallies: Iterable[Tally]) -> Tally:
    whole = Tally()
    for each in tallies:
        whole.add(each)
    return whole


def bootstrap(groups: list[Tally], value: Callable[[Tally], float]) -> tuple[float, float]:
    """95 % interval over groups (seeds) drawn with replacement; NaN below LEAST_GROUPS, where it would be far too
    narrow, or where most draws have no value. The same draws every time."""
    numbers = random.Random(1)
    drawn = (
        [value(pooled(numbers.choices(groups, k=len(groups)))) for _ in range(RESAMPLES)]
        if len(groups) >= LEAST_GROUPS
        else []
    )
    known = sorted(x for x in drawn if not math.isnan(x))
    if len(known) < RESAMPLES / 2:
        return math.nan, math.nan
    return known[int(0.025 * len(known))], known[int(0.975 * len(known))]


def summary(groups: list[Tally]) -> dict:
    """What is reported of one detector; a group is a seed, or a seed of a recipe."""
    whole = pooled(groups)
    leads = sorted(whole.leads)

    def quantile(share: float) -> float | None:
        return leads[min(len(leads) - 1, int(share * len(leads)))] if leads else None

    low, high = wilson(whole.hits, whole.events)
    lift_low, lift_high = bootstrap(groups, Tally.lift)
    per_10k = 1e4 / whole.twin_steps if whole.twin_steps else math.nan
    return {
        "events": whole.events, "hits": whole.hits, "hit_low": low, "hit_high": high, "twin_hits": whole.twin_hits,
        "lead_median": statistics.median(leads) if leads else None, "lead_p10": quantile(0.1),
        "lead_p25": quantile(0.25), "lead_p75": quantile(0.75),
        "alarms": whole.alarms, "right": whole.right,
        "precision": whole.right / whole.alarms if whole.alarms else math.nan,
        "base_rate": whole.steps_before / whole.steps if whole.steps else math.nan,
        "lift": whole.lift(), "lift_low": lift_low, "lift_high": lift_high,
        "false": whole.false, "twin_steps": whole.twin_steps,
        "false_per_10k": whole.false * per_10k, "false_per_10k_most": most_expected(whole.false) * per_10k,
    }  # fmt: skip
