"""Converts scores to alarms, with the rule by which the agent's detectors change their level (detect/detector.h), and
computes the scores of detection rules that others have published.

A score is a value divided by its limit: a detector warns from the score 1 on, but other thresholds can be tried. A
series is a list of (step, place, score) in the order of computation. A place is a layer or a tensor; "": the whole
model. The functions for published rules return one score per value; the score of a value that is not finite is 0.
"""

from __future__ import annotations

import collections
import math
import statistics

Series = list[tuple[int, str, float]]
# As LevelRule in detect/detector.h: a place stops warning after CALM scores in a row below LEAVE_AT * threshold.
LEAVE_AT, CALM = 0.7, 8


def alarms(series: Series, threshold: float = 1.0) -> list[tuple[int, str]]:
    """The steps at which a place begins to warn while no other place warns, each with that place."""
    calm: dict[str, int] = {}  # consecutive scores below LEAVE_AT * threshold, by place that warns
    begun = []
    for step, place, score in series:
        if score >= threshold:
            if not calm:
                begun.append((step, place))
            calm[place] = 0
        elif place in calm:
            calm[place] = calm[place] + 1 if score < LEAVE_AT * threshold else 0
            if calm[place] >= CALM:
                del calm[place]
    return begun


def zclip(norms: list[float]) -> list[float]:
    """ZClip (arXiv 2504.02507): z is how far the gradient norm lies above its moving mean, in moving standard
    deviations. Alarm at z = 2.5. The first 25 norms set mean and deviation; their scores are 0.

    `norms` are not clipped, so an outlier enters the averages as the value to which ZClip would clip it. If it entered
    unclipped, the next outlier would not be seen. If it were left out, the alarm on a lasting rise would never end.
    """
    # Decay of the moving averages, z of an alarm, number of first norms.
    alpha, least, wait = 0.97, 2.5, 25
    scores, first, mean, variance = [], [], 0.0, 0.0
    for norm in norms:
        if not math.isfinite(norm):
            scores.append(0.0)
            continue
        if len(first) < wait:
            first.append(norm)
            if len(first) == wait:
                mean, variance = statistics.fmean(first), statistics.pvariance(first)
            scores.append(0.0)
            continue
        z = (norm - mean) / (math.sqrt(variance) + 1e-6)
        scores.append(z / least)
        # ZClip replaces a z above the limit by limit * limit / z.
        taken = mean + least * math.sqrt(variance) / (z / least) if z > least else norm
        mean = alpha * mean + (1 - alpha) * taken
        variance = alpha * variance + (1 - alpha) * (taken - mean) ** 2
    return scores


def sigmas(values: list[float], window: int = 128, least: float = 6.0) -> list[float]:
    """OLMo-core's StabilityMonitor: how far a value lies above the mean of the `window` values before it, in their
    standard deviations. Alarm at `least`. The score is 0 until there are `window` values."""
    scores, last = [], collections.deque(maxlen=window)
    for value in values:
        spread = statistics.pstdev(last) if len(last) == window else 0.0
        scores.append((value - statistics.fmean(last)) / spread / least if spread > 0 and math.isfinite(value) else 0.0)
        if math.isfinite(value):
            last.append(value)
    return scores


def twice_the_mean(losses: list[float], patience: int = 4) -> list[float]:
    """llm-foundry's KillLossSpike: alarm if more than `patience` losses in a row are at least twice a moving mean. This
    is the mean of the last 100 losses, or of a twentieth of the training if that is more. With fewer the score is 0."""
    window = max(100, len(losses) // 20)
    scores, last, ratios = [], collections.deque(maxlen=window), collections.deque(maxlen=patience + 1)
    for loss in losses:
        if math.isfinite(loss):
            last.append(loss)
        mean = statistics.fmean(last) if last else 0.0
        ratios.append(loss / mean / 2 if len(last) == window and mean > 0 and math.isfinite(loss) else 0.0)
        scores.append(min(ratios) if len(ratios) == patience + 1 else 0.0)
    return scores


def cusum_of_loss(losses: list[float]) -> list[float]:
    """trainscope 1.8 without its optional change-point library: two-sided CUSUM (cumulative sums) of
    (loss - median) / (1.4826 MAD), slack 1, alarm at 6. Median and MAD (median absolute deviation) are over the 30 to
    200 losses before. An alarm resets the sums."""
    slack, least = 1.0, 6.0
    scores, last, high, low = [], collections.deque(maxlen=200), 0.0, 0.0
    for loss in losses:
        if not math.isfinite(loss):
            scores.append(0.0)
            continue
        if len(last) >= 30:
            middle = statistics.median(last)
            spread = max(1.4826 * statistics.median(abs(x - middle) for x in last), 1e-12)
            z = (loss - middle) / spread
            high, low = max(0.0, high + z - slack), min(0.0, low + z + slack)
        scores.append(max(high, -low) / least)
        if scores[-1] >= 1:
            high = low = 0.0
        last.append(loss)
    return scores


def of_others(steps: list[int], losses: list[float], norms: list[float], staleness: Series) -> dict[str, Series]:
    """The series of the published rules, by their names in the report. `losses` and `norms` have a value per step of
    `steps`. `staleness`: (step, tensor, value); the value is the RMS of gradient / sqrt(Adam's second moment). Above
    2.3 the moment is too small for the gradients, so the optimizer's step is too large."""

    def series(scores: list[float]) -> Series:
        return [(step, "", score) for step, score in zip(steps, scores, strict=True)]

    return {
        "ZClip 2.5 z": series(zclip(norms)),
        "OLMo 6 sigma, gradient norm": series(sigmas(norms)),
        "llm-foundry 2x mean loss": series(twice_the_mean(losses)),
        "RMS 2.3, any tensor": [(step, place, value / 2.3) for step, place, value in staleness],
        "trainscope CUSUM of the loss": series(cusum_of_loss(losses)),
    }
