"""Compares a monitored run of a suite with two runs without the monitor. Pure functions of what observe.py wrote."""

from __future__ import annotations

import json
import pathlib
from typing import Any, NamedTuple

Row = dict[str, Any]
SEEN = ("outcome", "output", "warnings")  # what has to be the same
# A test that raises the peak of memory by more than this beyond what it raises it by without the monitor is named. The
# first sampled step of a process brings the segment's pages and the helper's tables.
MEMORY_KIB, MEMORY_TIMES = 48 * 1024, 1.25


class Comparison(NamedTuple):
    same: list[str]
    differing: list[str]  # "test: what"
    more_memory: list[str]
    unsteady: list[str]  # the two runs without the monitor differ already
    missing: list[str]  # no line: the process ended before
    peaks: list[tuple[int, int]]  # without and with the monitor, KiB


def read(path: pathlib.Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["test"]: row for row in rows}


def difference(one: Row, other: Row) -> str:
    """The first thing of SEEN in which they differ, else ""."""
    for what in SEEN:
        if one[what] != other[what]:
            return f"{what} {one[what]!r:.300} became {other[what]!r:.300}"
    return ""


def compare(bare: dict[str, Row], again: dict[str, Row], monitored: dict[str, Row]) -> Comparison:
    result = Comparison([], [], [], [], [], [])
    for name, row in bare.items():
        if name not in again or difference(row, again[name]):
            result.unsteady.append(name)
        elif name not in monitored:
            result.missing.append(name)
        elif what := difference(row, monitored[name]):
            result.differing.append(f"{name}: {what}")
        else:
            result.same.append(name)
            peak, with_us = max(row["peak_kib"], again[name]["peak_kib"]), monitored[name]["peak_kib"]
            result.peaks.append((peak, with_us))
            if with_us > MEMORY_TIMES * peak + MEMORY_KIB:
                result.more_memory.append(f"{name}: {peak // 1024} MiB became {with_us // 1024} MiB")
    return result
