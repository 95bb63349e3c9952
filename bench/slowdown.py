"""Measures the slowdown of short trainings after their first look, by the wall clock and by foreshock's own meter.

    python bench/slowdown.py [--short] [--pairs 20] [--steps 500] [--only 10]

Each pair is a plain training and a watched one (under `foreshock run`), on one core. They take turns of 2 steps, in
random order, because the speed of a shared machine changes within seconds by more than what is measured. The watched
training waits during the turns of the plain one, and foreshock counts the waiting as time of the training. So
--max-slowdown is set to 1 % times the share of the time in which the watched training computes. The first 40 steps are
left out. They cover the first look, which ends earlier. Foreshock may take more time in the first look, so that a short
training is checked too.

Printed for each length of step: the wall time and the CPU time that foreshock adds to a step, relative to a plain step,
as the median over the pairs with its 95 % interval; "metered": the slowdown that foreshock reports, including the CPU
time of its agent; and the slowest step of the plain and of the watched trainings. A line per pair goes to stderr, with
the standard error of its mean. No goal is checked.

The model "gpu" trains on a CUDA device; without a device it is left out.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
import time
from typing import NamedTuple

from turns.trainers import Trainer, interval

MODELS = {  # approximate milliseconds of a plain step, or "gpu": layers, width, heads, batch size, length, device
    "10": "3,32,4,4,48,cpu",
    "30": "5,64,4,4,64,cpu",
    "100": "6,96,4,8,96,cpu",
    "gpu": "12,1024,16,8,1024,cuda",
}
FIRST_LOOK_STEPS = 40
TURN = 2  # steps
SHARE = 0.01  # default of --max-slowdown


class PairResult(NamedTuple):
    """What foreshock added to one training, as a share of a plain step."""

    wall: float
    standard_error: float  # of `wall`
    cpu: float
    metered: float  # the slowdown that foreshock reports
    plain_ms: float  # length of a plain step; not a share
    slowest: dict[str, float]  # {"plain" or "watched": seconds of its slowest step}; not a share


def busy_share(trainer: Trainer) -> float:
    """The share of the time in which one of two trainings like `trainer` computes if they take turns. `trainer` is
    measured alone, and its share is then halved."""
    begin = time.perf_counter()
    computed = sum(trainer.turn(TURN)["wall"] for _ in range(FIRST_LOOK_STEPS // TURN))
    return computed / (time.perf_counter() - begin) / 2


def by_clock(turns: list[dict[str, float]]) -> dict[str, list[float]]:
    """The seconds of each turn, by clock: "wall", "cpu", and "slowest" for the slowest step of a turn."""
    return {clock: [turn[clock] for turn in turns] for clock in turns[0]}


def run_pair(model: str, steps: int, generator: random.Random) -> PairResult:
    base = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-bench-", dir="/dev/shm"))
    try:
        size, cores = MODELS[model], sorted(os.sched_getaffinity(0))
        trainers = {"plain": Trainer("plain", size, base, cores)}
        trainers["plain"].turn(TURN)
        limit = ("--max-slowdown", f"{SHARE * busy_share(trainers['plain']):.4%}")
        trainers["watched"] = Trainer("watched", size, base, cores, limit)
        trainers["watched"].turn(FIRST_LOOK_STEPS)
        turns_of: dict[str, list[dict[str, float]]] = {kind: [] for kind in trainers}
        begin = time.perf_counter()
        for _ in range((steps - FIRST_LOOK_STEPS) // TURN):
            for kind in generator.sample(list(trainers), len(trainers)):  # in random order
                turns_of[kind].append(trainers[kind].turn(TURN))
        lasted = time.perf_counter() - begin
        ranks = {kind: trainer.finish() for kind, trainer in trainers.items()}
    finally:
        shutil.rmtree(base, ignore_errors=True)
    plain, watched = by_clock(turns_of["plain"]), by_clock(turns_of["watched"])
    mean = statistics.fmean(plain["wall"])
    added = [b - a for a, b in zip(plain["wall"], watched["wall"], strict=True)]
    return PairResult(
        wall=statistics.fmean(added) / mean,
        standard_error=statistics.stdev(added) / math.sqrt(len(added)) / mean,
        cpu=sum(watched["cpu"]) / sum(plain["cpu"]) - 1,
        # The ratio is relative to the time of the whole process, less the monitor's own time. `lasted` is the time of
        # the steps after the first 40, in which both trainings ran.
        metered=ranks["watched"]["slowdown_ratio"] * lasted / sum(plain["wall"]),
        plain_ms=1e3 * mean / TURN,
        slowest={"plain": max(plain["slowest"]), "watched": max(watched["slowest"])},
    )


def measure(model: str, pairs: int, steps: int) -> None:
    generator, measured = random.Random(1), []
    for number in range(pairs):
        pair = run_pair(model, steps, generator)
        measured.append(pair)
        wall = f"{pair.wall:+.2%} (standard error {pair.standard_error:.2%})"
        print(f"  pair {number}: wall {wall}, metered {pair.metered:.2%}", file=sys.stderr, flush=True)
    columns = []
    for clock in ("wall", "cpu"):
        middle, low, high = interval([[getattr(pair, clock) for pair in measured]])  # median, 95 % interval
        columns.append(f"{clock} {middle:+.2%} [{low:+.2%}, {high:+.2%}]")
    metered = [pair.metered for pair in measured]
    slowest = {kind: 1e3 * max(pair.slowest[kind] for pair in measured) for kind in ("plain", "watched")}
    print(
        f"{statistics.median(pair.plain_ms for pair in measured):6.1f} ms  {'  '.join(columns)}  "
        f"metered {statistics.median(metered):.2%} [{min(metered):.2%}, {max(metered):.2%}]  slowest step "
        f"{slowest['plain']:.1f} ms plain, {slowest['watched']:.1f} ms watched   ({pairs} pairs of {steps} steps)",
        flush=True,
    )


def has_device() -> bool:
    import torch

    return torch.cuda.is_available()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--only", choices=list(MODELS), action="append", help="these lengths of step alone")
    parser.add_argument("--short", action="store_true", help="one pair of 60 steps of the first: shows that it runs")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.pairs, arguments.steps, arguments.only = 1, 60, arguments.only or [next(iter(MODELS))]
    for model in arguments.only or list(MODELS):
        if MODELS[model].endswith("cuda") and not has_device():
            print(f"{model}: nothing was measured: no device: torch sees none")
            continue
        measure(model, arguments.pairs, arguments.steps)


if __name__ == "__main__":
    main()
