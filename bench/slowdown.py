"""The slowdown of whole short trainings after their first look, by the wall clock and by foreshock's own meter.

    python bench/slowdown.py [--pairs 20] [--steps 500] [--only 10]

Each pair is a plain training and one under `foreshock run` with default options, in random order, each in a separate
process with all cores. The first 40 steps are left out, since they have an additional budget. Printed for each length
of step: the median over the pairs of the ratio of wall times - 1 and of CPU times - 1, with 95 % intervals; and the
slowdown that the summary reports, which includes the agent. A report, not a gate: other work on the machine dominates
the wall times.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import shutil
import statistics
import tempfile
from typing import Any

from turns.trainers import Trainer, interval

MODELS = {"10": (3, 32, 4, 48), "30": (5, 64, 4, 64), "100": (6, 96, 8, 96)}  # ms: layers, width, batch, length
FIRST_LOOK_STEPS = 40


def run(kind: str, model: str, steps: int) -> tuple[dict[str, float], dict[str, Any]]:
    base = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-bench-", dir="/dev/shm"))
    try:
        what = ",".join(map(str, MODELS[model]))
        trainer = Trainer(kind, what, base, sorted(os.sched_getaffinity(0)))
        trainer.turn(FIRST_LOOK_STEPS)
        took = trainer.turn(steps - FIRST_LOOK_STEPS)
        return took, trainer.finish()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def measure(model: str, pairs: int, steps: int) -> None:
    chance = random.Random(1)
    ratios: dict[str, list[float]] = {"wall": [], "cpu": []}
    metered, plain_ms = [], []
    for _ in range(pairs):
        kinds = ["plain", "default"]
        chance.shuffle(kinds)
        runs = {kind: run(kind, model, steps) for kind in kinds}
        (plain, _), (watched, rank) = runs["plain"], runs["default"]
        for clock, kept in ratios.items():
            kept.append(watched[clock] / plain[clock] - 1)
        metered.append(rank["slowdown_ratio"])
        plain_ms.append(1e3 * plain["wall"] / (steps - FIRST_LOOK_STEPS))
    columns = []
    for clock, kept in ratios.items():
        middle, low, high = interval([kept])
        columns.append(f"{clock} {middle:+.2%} [{low:+.2%}, {high:+.2%}]")
    print(
        f"{statistics.median(plain_ms):6.1f} ms  {'  '.join(columns)}  metered {statistics.median(metered):.2%} "
        f"[{min(metered):.2%}, {max(metered):.2%}]   ({pairs} pairs of {steps} steps)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--only", choices=list(MODELS), action="append", help="these lengths of step alone")
    arguments = parser.parse_args()
    for model in arguments.only or list(MODELS):
        measure(model, arguments.pairs, arguments.steps)


if __name__ == "__main__":
    main()
