"""Statistics of bench/yardsticks.py, which repeats trainings with several seeds (replicates): the slope of a weight
deviation over the steps, the ratio of two such slopes (or of two deviations at the last step), and the mean over the
replicates with its 95 % interval."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

# 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom. Beyond the table, 1.96 is used: less than 9 % off.
T975 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]
CLAIMED = (2.0, 5.0)  # arXiv 2405.02803: "2-5x less model weight deviation as compared to low-precision training"


class Interval(NamedTuple):
    """A mean and its 95 % interval; low and high are NaN for a single replicate."""

    mean: float
    low: float
    high: float


def interval(values: list[float]) -> Interval:
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Interval(mean, math.nan, math.nan)
    t = T975[count - 2] if count - 2 < len(T975) else 1.96
    half = t * float(np.std(values, ddof=1)) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)


def ratio(numerators: list[float], denominators: list[float]) -> Interval:
    """The geometric mean of the replicates' ratios with its interval; NaN unless all values are positive."""
    pairs = list(zip(numerators, denominators, strict=True))
    if any(not x > 0 or not y > 0 for x, y in pairs):  # also true for NaN
        return Interval(math.nan, math.nan, math.nan)
    logs = interval([math.log(x / y) for x, y in pairs])
    return Interval(*(math.exp(x) for x in logs))


def slope(steps: list[int], values: list[float]) -> float:
    """The slope of `values` per step, by least squares."""
    return float(np.polyfit(steps, values, 1)[0])


def verdict(measured: Interval) -> str:
    """Whether the interval of a ratio lies inside CLAIMED ("confirmed"), outside ("denied") or neither. `measured`:
    weight deviation by low precision / weight deviation by the kernel. Both are slopes, or both are values at the last
    step."""
    low, high = CLAIMED
    if math.isnan(measured.low):  # a single replicate, or a value that is not positive
        return "undecided"
    if low <= measured.low and measured.high <= high:
        return "confirmed"
    return "denied" if measured.high < low or measured.low > high else "undecided"


def no_nan(value: Any) -> Any:
    """A copy of `value`, JSON data, with None in place of numbers that are not finite, which JSON cannot represent."""
    if isinstance(value, dict):
        return {key: no_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [no_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
