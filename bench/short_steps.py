"""Measures what the monitor costs a training of short steps, and compares it with the cost that the monitor reports.

    python bench/short_steps.py [--short] [--rounds 30] [--sets 3]

The monitor's code in the trainer works at every step, so its share of the time grows as steps become shorter.
Samples (copied parts of attention calls) and snapshots of weights are then postponed, so that all costs together stay
below --max-slowdown. For each length of step, a plain training and a training under `foreshock run --record` take turns
on one core. The agent, the process that judges samples, has the other cores.

Printed for each length: the time of a plain step; `added`, the CPU time that the monitor adds in the trainer, as a
share of the plain trainer's, with a 95 % interval; `metered`, the cost according to the monitor, in the trainer and
with the agent's CPU time; and the parts of the trainer's metered cost in microseconds per step: `each` (median of the
steps without samples and snapshots) and `beyond` (mean addition by set-up, samples and snapshots).

A second line lists times measured in the trainer, with the monitor minus without it. `clock`: the hooks around the
optimizer's step, in the median step. `other`: the mean addition per step by sampled steps and by steps that check all
parameters or measure weights. `attention`: the forward calls of attention, which are only counted in the median step.
`loss`: the loss function. `norm`: the clipping of gradients in a step that clips, with its hooks. No goal is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from typing import Any, NamedTuple

from turns.trainers import Trainer, interval, plain_and_default

MODELS = {  # approximate milliseconds of a step: layers, width, heads, batch, length, device
    "1": "1,16,4,1,8,cpu",
    "2": "1,32,4,2,24,cpu",
    "5": "1,32,4,4,48,cpu",
    "10": "3,32,4,4,48,cpu",
    "15": "13,16,4,1,8,cpu",  # 211 parameter tensors; the others have 19 to 67
    "25": "4,64,4,4,64,cpu",
}
TURN_MS = 400  # length of a turn
SET_UP_STEPS = 6  # first steps, in which the monitor sets up
PART_TURNS, LEAST_PART_STEPS = 5, 64  # turns in which parts_of_cost() measures, and the least steps of such a turn
MEDIAN, MEAN = 0, 1  # indexes in the lists that Trainer.parts() returns


class Metered(NamedTuple):
    """The cost of one training according to its record, without the pauses between turns."""

    trainer: float  # cost in the trainer, as a share of the training's own time
    with_agent: float  # the same with the agent's CPU time added, as in the summary
    each_us: float  # `each` and `beyond`: the parts of the cost in the trainer that are described above
    beyond_us: float


def metered(record: str, rank: dict[str, Any], turn: int) -> Metered:
    """The cost of a training from its `record` (lines of JSON). `rank`: the rank's entry in the summary. `turn`: steps
    per turn. The duration of a turn's first step includes the time that the trainer waited before it, so first steps
    are replaced by the mean of the others."""
    lines = [json.loads(line) for line in record.splitlines()]
    steps = [line for line in lines if line["type"] == "step"]
    with_snapshot = {line["step"] for line in lines if line["type"] == "tensor"}
    own = sum(step["overhead_seconds"] for step in steps)  # the monitor's time in the trainer
    lasted = sum(step["duration_seconds"] for step in steps)
    without_first = sum(step["duration_seconds"] for step in steps if step["step"] % turn != 1)
    trained = without_first * turn / (turn - 1) - own  # seconds of the training's own work
    # The ratio is (own + agent) / (lasted - own), without the first look: its cost, at most half a second, is missing.
    agent = rank["slowdown_ratio"] * (lasted - own) - own
    bare = [step for step in steps[SET_UP_STEPS:] if not step["sampled"] and step["step"] not in with_snapshot]
    each = statistics.median(step["overhead_seconds"] for step in bare)
    return Metered(own / trained, (own + agent) / trained, each * 1e6, (own / len(steps) - each) * 1e6)


def parts_of_cost(trainers: dict[str, Trainer], steps: int) -> dict[str, float]:
    """The second line, in microseconds per step. The trainers take turns, since the speed of the machine varies."""
    turns = [{name: trainer.parts(steps) for name, trainer in trainers.items()} for _ in range(PART_TURNS)]

    def added(step: str, part: str, which: int) -> float:
        """`step`: "plain" or "clipped", a step without or with clipping. `which`: MEDIAN or MEAN."""
        differences = [turn["default"][step][part][which] - turn["plain"][step][part][which] for turn in turns]
        return statistics.median(differences)

    clock = added("plain", "hooks", MEDIAN)
    return {
        "clock": clock,
        "other": added("plain", "hooks", MEAN) - clock,
        "attention": added("plain", "attention", MEDIAN),
        "loss": added("plain", "loss", MEDIAN),
        # Clipping itself, and by how much more the hooks cost in a step that clips.
        "norm": added("clipped", "norm", MEDIAN) + added("clipped", "hooks", MEDIAN) - clock,
    }


def measure(model: str, sets: int, rounds: int, cores: list[int]) -> None:
    size, ratios, measured, plain_ms = MODELS[model], [], [], []
    steps = max(8, 8 * round(TURN_MS / float(model) / 8))  # a multiple of 8, the least interval between sampled steps
    for number in range(sets):
        with plain_and_default(size, cores) as trainers:
            for trainer in trainers.values():
                trainer.turn(steps)
            generator, ratios_of_set = random.Random(number), []
            for _ in range(rounds):
                order = list(trainers)
                generator.shuffle(order)
                took = {kind: trainers[kind].turn(steps)["cpu"] for kind in order}
                ratios_of_set.append(took["default"] / took["plain"] - 1)
                plain_ms.append(1e3 * took["plain"] / steps)
            ratios.append(ratios_of_set)
            rank = trainers["default"].finish()
            measured.append(metered((trainers["default"].base / "record.jsonl").read_text(), rank, steps))
    with plain_and_default(size, cores) as trainers:
        for trainer in trainers.values():
            trainer.turn(steps)
        parts = parts_of_cost(trainers, max(steps, LEAST_PART_STEPS))
    middle, low, high = interval(ratios)  # median, 95 % interval
    cost = Metered(*(statistics.median(column) for column in zip(*measured, strict=True)))
    print(
        f"{statistics.median(plain_ms):5.1f} ms  added {middle:+.2%} [{low:+.2%}, {high:+.2%}]  "
        f"metered {cost.trainer:.2%}, with the agent {cost.with_agent:.2%}  each {cost.each_us:.1f} us, "
        f"beyond {cost.beyond_us:.0f} us   "
        f"({sets} sets x {rounds} rounds of {steps} steps)",
        "          us a step: " + ", ".join(f"{part} {us:.1f}" for part, us in parts.items()),
        sep="\n",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=3, help="processes of each kind, one after the other")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each process")
    parser.add_argument("--only", choices=list(MODELS), action="append", help="these lengths of step alone")
    parser.add_argument("--short", action="store_true", help="one set of the first alone: shows that it runs")
    arguments = parser.parse_args()
    sets, rounds = (1, 5) if arguments.short else (arguments.sets, arguments.rounds)
    for model in arguments.only or list(MODELS)[: 1 if arguments.short else None]:
        measure(model, sets, rounds, sorted(os.sched_getaffinity(0)))


if __name__ == "__main__":
    main()
