"""The protocol of the benchmark of detectors: events, scored steps, hits, intervals of the results.

An onset is the step at which a loss event begins. The two arms are a training with a planted fault and its sound twin.
An alarm is the step at which a detector begins to warn; an event with an alarm within the horizon before it is a hit.

HORIZON, AFTERMATH, FIRST_STEP and the rule for loss events (LossEventRule in detect/loss_rules.h) were fixed before any
training. Trainings of the recipe `following-bias` then showed slow failures that went undetected. Therefore the rule
for slow rises (LossRiseRule) was corrected and excess() was added. Those trainings are not scored.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

HORIZON = 64  # an onset with an alarm at most this many steps before it is a hit
# The horizon of attention detectors. According to the literature, signs in attention come hundreds of steps before the
# loss event. Precursors::kHorizon in detect/watch.h is as long, but begins at the end of the warning. A longer horizon
# gives no advantage: it also raises the base rate, the share of scored steps that an onset follows within the horizon.
LONG_HORIZON = 256
# Detectors with LONG_HORIZON. All others have HORIZON.
OF_ATTENTION = (
    "bias", "output_error_drift", "deviation_forward", "deviation_backward", "max_logit", "logit_growth",
    "entropy_drop",
)  # fmt: skip
AFTERMATH = 64  # steps after the recovery of the loss that are not scored
FIRST_STEP = 160  # first scored step; the rule for loss events needs a window of 128 losses before an event
# excess() finds failures that the rules for loss events miss: at least EXCESS_LASTS consecutive averages, each over
# BLOCK losses, exceed those of the twin by the share EXCESS.
BLOCK, EXCESS, EXCESS_LASTS = 16, 0.1, 3
RESAMPLES, LEAST_GROUPS = 1000, 4  # bootstrap(): number of draws, and of groups below which it has no result
Z95 = 1.959964  # 97.5 % quantile of the normal distribution


def horizon(detector: str) -> int:
    return LONG_HORIZON if detector in OF_ATTENTION else HORIZON


@dataclass
class Training:
    """The data of one training that scoring needs."""

    recipe: str
    seed: int
    last_step: int
    onsets: list[int]  # onsets of loss events, ascending, without those in the aftermath of an earlier event
    masked: list[tuple[int, int]]  # steps [from, to) from an onset to the end of its aftermath, which are not scored
    alarms: dict[str, list[int]] = field(default_factory=dict)  # steps by detector, ascending

    def is_scored(self, step: int) -> bool:
        return FIRST_STEP <= step <= self.last_step and not any(a <= step < b for a, b in self.masked)

    def window(self, onset: int, horizon: int) -> list[int]:
        """The scored steps among the `horizon` steps before the onset."""
        return [step for step in range(onset - horizon, onset) if self.is_scored(step)]

    def scored_steps(self) -> list[int]:
        return [step for step in range(FIRST_STEP, self.last_step + 1) if self.is_scored(step)]

    def cut(self, last: int) -> Training:
        """The training as if it had ended at step `last`."""
        onsets = [onset for onset in self.onsets if onset <= last]
        return Training(self.recipe, self.seed, min(last, self.last_step), onsets, self.masked, self.alarms)


def recovered(losses: dict[int, float], onset: int, last: int) -> int:
    """The step at which the loss has recovered: the first of three steps in a row whose losses are at most the largest
    loss of the 128 steps before the onset. `last` + 1 if the loss has not recovered by the step `last`."""
    before = [losses[s] for s in range(onset - 128, onset) if math.isfinite(losses.get(s, math.nan))]
    usual, in_row = max(before, default=-math.inf), 0
    for step in range(onset + 1, last + 1):
        in_row = in_row + 1 if losses.get(step, math.inf) <= usual else 0
        if in_row == 3:
            return step - 2
    return last + 1


def masks(losses: dict[int, float], found: Iterable[int], last: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns those of the onsets `found` that are after the aftermath of earlier events, and for each of them the
    steps [from, to) that are not scored."""
    onsets: list[int] = []
    masked: list[tuple[int, int]] = []
    for onset in sorted(found):
        if masked and onset < masked[-1][1]:
            continue
        onsets.append(onset)
        masked.append((onset, min(last + 1, recovered(losses, onset, last) + AFTERMATH)))
    return onsets, masked


def excess(means: list[float | None], twin: list[float | None]) -> tuple[int, int] | None:
    """Steps [from, to) of the first failure in comparison with the twin; None: no failure.

    Both trainings are given by their means of BLOCK losses, from step 1 on; None stands for a mean that is not finite,
    which counts as excess. A failure is EXCESS_LASTS or more means in a row that exceed those of the twin by the share
    EXCESS. `from` is the first step of the first of these means. The failure begins there or later, so a lead (steps
    from an alarm to the failure) is not overestimated. `to` is AFTERMATH steps after the last of these means. If they
    last to the end of the training, it is BLOCK steps more, because an incomplete last block has no mean. Before the
    fault, both trainings have equal losses.
    """
    above = [
        mean is None or (other is not None and mean > (1 + EXCESS) * other)
        for mean, other in zip(means, twin, strict=False)
    ]
    first = -(-FIRST_STEP // BLOCK)  # index of the first mean that begins after FIRST_STEP
    for n in range(first, len(above) - EXCESS_LASTS + 1):
        if all(above[n : n + EXCESS_LASTS]):
            end = next((m for m in range(n, len(above)) if not above[m]), None)
            last = BLOCK * len(means) + BLOCK if end is None else BLOCK * end
            return BLOCK * n + 1, last + 1 + AFTERMATH
    return None


def wilson(hits: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of the share hits / of, where `of` is the number of trials."""
    if of == 0:
        return math.nan, math.nan
    share, z2 = hits / of, Z95 * Z95
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = Z95 / (1 + z2 / of) * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def most_expected(count: int) -> float:
    """One-sided upper 95 % bound of the mean of a Poisson distribution, after `count` events: with that mean, `count`
    or fewer events have the probability 5 %."""

    def at_most(mean: float) -> float:
        # Probability of `count` or fewer events. By logarithms, since exp(-mean) underflows to 0 above a mean of 746.
        return sum(math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(count + 1))

    low, high = 0.0, 10.0 + 3.0 * count  # the bound is between these; bisection
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(middle) > 0.05 else (low, middle)
    return high


@dataclass
class Tally:
    """Counts of one detector, summed over trainings, for ratios. An event's window is the horizon before its onset."""

    events: int = 0  # loss events of trainings with a fault that have a scored step in their window
    hits: int = 0  # events with an alarm in their window
    leads: list[int] = field(default_factory=list)  # for each hit: steps from the first such alarm to the onset
    twin_hits: int = 0  # windows of these events in which the twin had an alarm
    alarms: int = 0  # alarms in scored steps of both arms
    right: int = 0  # alarms that an onset follows within the horizon
    steps: int = 0  # scored steps of both arms
    steps_before: int = 0  # scored steps that an onset follows within the horizon

    def add(self, other: Tally) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def lift(self) -> float:
        """How many times as often an event follows an alarm as an arbitrary scored step; NaN: no alarm or no event."""
        if self.alarms == 0 or self.steps_before == 0:
            return math.nan
        return self.right / self.alarms / (self.steps_before / self.steps)


def tally(fault: Training, twin: Training | None, detector: str) -> Tally:
    """Counts events and hits in the training with the fault, and alarms and steps in this training and its twin."""
    found, ahead = Tally(), horizon(detector)
    for training in filter(None, (fault, twin)):
        scored = training.scored_steps()
        before = {step for onset in training.onsets for step in training.window(onset, ahead)}
        own = [step for step in training.alarms.get(detector, []) if training.is_scored(step)]
        found.steps += len(scored)
        found.steps_before += len(before)
        found.alarms += len(own)
        found.right += sum(step in before for step in own)
        for onset in training.onsets if training is fault else []:
            window = training.window(onset, ahead)
            if not window:
                continue
            inside = [step for step in own if step in set(window)]
            found.events += 1
            found.hits += bool(inside)
            found.leads += [onset - inside[0]] if inside else []
            found.twin_hits += twin is not None and any(step in set(window) for step in twin.alarms.get(detector, []))
    return found


@dataclass
class Quiet:
    """False alarms in trainings without a fault: alarms and scored steps that no onset follows within LONG_HORIZON."""

    alarms: int = 0
    steps: int = 0

    def per_10k(self) -> float:
        return 1e4 * self.alarms / self.steps if self.steps else math.nan

    def per_10k_most(self) -> float:
        """An upper 95 % bound of per_10k()."""
        return 1e4 * most_expected(self.alarms) / self.steps if self.steps else math.nan


def quiet(controls: Iterable[Training], detectors: Iterable[str]) -> Quiet:
    """Counts the false alarms of `detectors`. Each training counts once, even if it is the twin of several faults."""
    found, names = Quiet(), list(detectors)
    for training in controls:
        before = {step for onset in training.onsets for step in training.window(onset, LONG_HORIZON)}
        found.steps += len(training.scored_steps()) - len(before)
        for name in names:
            alarmed = [step for step in training.alarms.get(name, []) if training.is_scored(step)]
            found.alarms += sum(step not in before for step in alarmed)
    return found


def pooled(tallies: Iterable[Tally]) -> Tally:
    whole = Tally()
    for each in tallies:
        whole.add(each)
    return whole


def bootstrap(groups: list[Tally], value: Callable[[Tally], float]) -> tuple[float, float]:
    """95 % bootstrap interval: groups (seeds) are drawn with replacement, with the same draws in every call. NaN with
    fewer than LEAST_GROUPS groups, for which it would be far too narrow, or if most draws have no value."""
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


def summary(groups: list[Tally], calm: Quiet) -> dict:
    """The reported figures of one detector. A group is a seed, or a seed of a recipe. `calm`: the counts of the
    trainings without a fault."""
    whole = pooled(groups)
    leads = sorted(whole.leads)

    def quantile(share: float) -> float | None:
        return leads[min(len(leads) - 1, int(share * len(leads)))] if leads else None

    low, high = wilson(whole.hits, whole.events)
    lift_low, lift_high = bootstrap(groups, Tally.lift)
    return {
        "events": whole.events, "hits": whole.hits, "hit_low": low, "hit_high": high, "twin_hits": whole.twin_hits,
        "lead_median": statistics.median(leads) if leads else None, "lead_p10": quantile(0.1),
        "lead_p25": quantile(0.25), "lead_p75": quantile(0.75),
        "alarms": whole.alarms, "right": whole.right,
        "precision": whole.right / whole.alarms if whole.alarms else math.nan,
        "base_rate": whole.steps_before / whole.steps if whole.steps else math.nan,
        "lift": whole.lift(), "lift_low": lift_low, "lift_high": lift_high,
        "false": calm.alarms, "twin_steps": calm.steps,
        "false_per_10k": calm.per_10k(), "false_per_10k_most": calm.per_10k_most(),
    }  # fmt: skip
