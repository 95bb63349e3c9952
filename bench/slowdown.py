"""The slowdown of short trainings after their first look, by the wall clock and by foreshock's own meter.

    python bench/slowdown.py [--pairs 20] [--steps 500] [--only 10] [--objects 3000000]

Each pair is a plain training and one under `foreshock run` with default options: new processes, which take turns of
about half a second on one core, in random order, since the speed of a machine varies from minute to minute. The agent
has the other cores. The first 40 steps are left out, since they have an additional budget. Printed for each length of
step: the median over the pairs of the ratio of wall times - 1 and of CPU times - 1, with 95 % intervals; the slowdown
that the summary reports, which includes the agent, with its least and largest value; and the slowest step of all
trainings of either kind. A line per pair goes to stderr. A report, not a gate.

--objects: the trainings hold so many Python objects beside the model. Work that grew with the heap would be in the
slowest step.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys

from turns.trainers import interval, one_of_each

MODELS = {"10": (3, 32, 4, 48), "30": (5, 64, 4, 64), "100": (6, 96, 8, 96)}  # ms: layers, width, batch, length
FIRST_LOOK_STEPS = 40
TURN_MS = 500
CLOCKS = ("wall", "cpu")


def measure(model: str, pairs: int, steps: int, objects: int) -> None:
    what, cores, chance = ",".join(map(str, MODELS[model])), sorted(os.sched_getaffinity(0)), random.Random(1)
    turn = max(1, TURN_MS // int(model))
    ratios: dict[str, list[float]] = {clock: [] for clock in CLOCKS}
    slowest, metered, plain_ms = {"plain": 0.0, "default": 0.0}, [], []
    for pair in range(pairs):
        with one_of_each(what, ("plain", "default"), cores, objects) as trainers:
            took = {kind: dict.fromkeys(CLOCKS, 0.0) for kind in trainers}
            for trainer in trainers.values():
                trainer.turn(FIRST_LOOK_STEPS)
            for begin in range(FIRST_LOOK_STEPS, steps, turn):
                for kind in chance.sample(sorted(trainers), 2):
                    times = trainers[kind].turn(min(turn, steps - begin))
                    slowest[kind] = max(slowest[kind], times["slowest"])
                    for clock in CLOCKS:
                        took[kind][clock] += times[clock]
            metered.append(trainers["default"].finish()["slowdown_ratio"])
        for clock, kept in ratios.items():
            kept.append(took["default"][clock] / took["plain"][clock] - 1)
        plain_ms.append(1e3 * took["plain"]["wall"] / (steps - FIRST_LOOK_STEPS))
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
