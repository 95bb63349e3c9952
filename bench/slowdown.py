"""The slowdown of whole short trainings after their first look, by the wall clock and by foreshock's own meter.

    python bench/slowdown.py [--pairs 20] [--steps 500] [--only 10] [--objects 3000000]

Each pair is a plain training and one under `foreshock run` with default options, in random order, each in a separate
process with all cores. The first 40 steps are left out, since they have an additional budget. Printed for each length
of step: the median over the pairs of the ratio of wall times - 1 and of CPU times - 1, with 95 % intervals; and the
slowdown that the summary reports, which includes the agent; and the slowest step of either kind. A line per pair goes
to stderr. A report, not a gate: two processes of the same program differ by several percent on a shared machine.

--objects: the trainings hold so many Python objects beside the model. Work that grew with the heap would be in the
slowest step.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
from typing import Any

from turns.trainers import Trainer, interval

MODELS = {"10": (3, 32, 4, 48), "30": (5, 64, 4, 64), "100": (6, 96, 8, 96)}  # ms: layers, width, batch, length
FIRST_LOOK_STEPS = 40


def run(kind: str, model: str, steps: int, objects: int) -> tuple[dict[str, float], dict[str, Any]]:
    base = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-bench-", dir="/dev/shm"))
    try:
        what = ",".join(map(str, MODELS[model]))
        trainer = Trainer(kind, what, base, sorted(os.sched_getaffinity(0)), objects)
        trainer.turn(FIRST_LOOK_STEPS)
        took = trainer.turn(steps - FIRST_LOOK_STEPS)
        return took, trainer.finish()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def measure(model: str, pairs: int, steps: int, objects: int) -> None:
    chance = random.Random(1)
    ratios: dict[str, list[float]] = {"wall": [], "cpu": []}
    metered, plain_ms = [], []
    slowest = {"plain": 0.0, "default": 0.0}
    for pair in range(pairs):
        kinds = ["plain", "default"]
        chance.shuffle(kinds)
        runs = {kind: run(kind, model, steps, objects) for kind in kinds}
        (plain, _), (watched, rank) = runs["plain"], runs["default"]
        for clock, kept in ratios.items():
            kept.append(watched[clock] / plain[clock] - 1)
        for kind, (took, _) in runs.items():
            slowest[kind] = max(slowest[kind], took["slowest"])
        metered.append(rank["slowdown_ratio"])
        plain_ms.append(1e3 * plain["wall"] / (steps - FIRST_LOOK_STEPS))
        print(f"  pair {pair}: wall {ratios['wall'][-1]:+.2%} metered {metered[-1]:.2%}", file=sys.stderr, flush=True)
    columns = []
    for clock, kept in ratios.items():
        middle, low, high = interval([kept])
        columns.append(f"{clock} {middle:+.2%} [{low:+.2%}, {high:+.2%}]")
    print(
        f"{statistics.median(plain_ms):6.1f} ms  {'  '.join(columns)}  metered {statistics.median(metered):.2%} "
        f"[{min(metered):.2%}, {max(metered):.2%}]  slowest step {1e3 * slowest['plain']:.1f} ms plain, "
        f"{1e3 * slowest['default']:.1f} ms watched   ({pairs} pairs of {steps} steps)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--objects", type=int, default=0, help="Python objects that each training holds")
    parser.add_argument("--only", choices=list(MODELS), action="append", help="these lengths of step alone")
    arguments = parser.parse_args()
    for model in arguments.only or list(MODELS):
        measure(model, arguments.pairs, arguments.steps, arguments.objects)


if __name__ == "__main__":
    main()
