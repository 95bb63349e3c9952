"""What the monitor costs a training of short steps, and whether what it says of that is true.

    python bench/short_steps.py [--short] [--rounds 30] [--sets 3]

What the helper does at every step cannot be refused, so the shorter the step, the larger its share; samples and
snapshots of weights then wait (DESIGN: budget). For each length of step a plain training and one under `foreshock run`
with default options take turns on one core (turns/trainers.py); the agent has the other ones.

Printed for each: the length of a plain step; `added`, the CPU time of the trainer with the monitor over that without
it - 1, and its 95 % interval; `metered`, what the monitor itself says that it took of the trainer, and of the agent's
cores; and what it is made of in microseconds a step: `each` step (median of those with nothing else in them), and
what set-up, samples and snapshots add in the mean.

A second line says what the time is paid for, as a clock in the trainer sees it, plain training subtracted. `clock`: the
hooks around the optimizer's work, median step; `other`: what steps that look at all parameters, that are sampled or
that measure weights add to them, per step in the mean; `loss`: what the function of the loss takes longer; `norm`: what
a step takes longer that clips its gradients, its hooks included. A report, not a gate.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from typing import Any, NamedTuple

from turns.trainers import Trainer, interval, one_of_each

MODELS = {  # by about how many ms a step takes: layers, width, batch, length
    "1": (1, 16, 1, 8),
    "2": (1, 32, 2, 24),
    "5": (1, 32, 4, 48),
    "10": (3, 32, 4, 48),
    "25": (4, 64, 4, 64),
}
TURN_MS = 400
SET_UP_STEPS = 6
PART_TURNS, LEAST_PART_STEPS = 5, 64
MEDIAN, MEAN = 0, 1


class Metered(NamedTuple):
    """Of one training, as its record has it, without the time that it stood still between two turns."""

    trainer: float  # share of the training's own time
    all: float  # the same with the agent's, as the summary counts it
    each_us: float
    beyond_us: float


def metered(record: str, rank: dict[str, Any], turn: int) -> Metered:
    """`turn`: steps after which it stands still; the step that comes then is as long as it stood."""
    lines = [json.loads(line) for line in record.splitlines()]
    steps = [line for line in lines if line["type"] == "step"]
    looked_at = {line["step"] for line in lines if line["type"] == "tensor"}
    own = sum(step["overhead_seconds"] for step in steps)
    lasted = sum(step["duration_seconds"] for step in steps)
    without_pauses = sum(step["duration_seconds"] for step in steps if step["step"] % turn != 1)
    trained = without_pauses * turn / (turn - 1) - own
    agent = rank["slowdown_ratio"] * (lasted - own) - own
    bare = [
        step["overhead_seconds"]
        for step in steps[SET_UP_STEPS:]
        if not step["sampled"] and step["step"] not in looked_at
    ]
    each = statistics.median(bare)
    return Metered(own / trained, (own + agent) / trained, each * 1e6, (own / len(steps) - each) * 1e6)


def paid_for(trainers: dict[str, Trainer], steps: int) -> dict[str, float]:
    """Microseconds a step. Both trainers take turns, since the machine is not the same all the time."""
    turns = [{kind: trainer.parts(steps) for kind, trainer in trainers.items()} for _ in range(PART_TURNS)]

    def added(kind: str, part: str, which: int) -> float:
        each = [turn["recorded"][kind][part][which] - turn["plain"][kind][part][which] for turn in turns]
        return statistics.median(each)

    clock = added("plain", "hooks", MEDIAN)
    return {
        "clock": clock,
        "other": added("plain", "hooks", MEAN) - clock,
        "loss": added("plain", "loss", MEDIAN),
        "norm": added("clipped", "norm", MEDIAN) + added("clipped", "hooks", MEDIAN) - clock,
    }


def measure(model: str, sets: int, rounds: int, cores: list[int]) -> None:
    what, ratios, told, plain_ms = ",".join(map(str, MODELS[model])), [], [], []
    steps = max(8, 8 * round(TURN_MS / float(model) / 8))
    for number in range(sets):
        with one_of_each(what, ("plain", "recorded"), cores) as trainers:
            for trainer in trainers.values():
                trainer.turn(steps)
            chance, kept = random.Random(number), []
            for _ in range(rounds):
                order = list(trainers)
                chance.shuffle(order)
                took = {kind: trainers[kind].turn(steps)["cpu"] for kind in order}
                kept.append(took["recorded"] / took["plain"] - 1)
                plain_ms.append(1e3 * took["plain"] / steps)
            ratios.append(kept)
            rank = trainers["recorded"].finish()
            told.append(metered((trainers["recorded"].base / "record").read_text(), rank, steps))
    with one_of_each(what, ("plain", "recorded"), cores) as trainers:
        for trainer in trainers.values():
            trainer.turn(steps)
        parts = paid_for(trainers, max(steps, LEAST_PART_STEPS))
    middle, low, high = interval(ratios)
    of = Metered(*(statistics.median(column) for column in zip(*told, strict=True)))
    print(
        f"{statistics.median(plain_ms):5.1f} ms  added {middle:+.2%} [{low:+.2%}, {high:+.2%}]  "
        f"metered {of.trainer:.2%}, with the agent {of.all:.2%}  each {of.each_us:.0f} us, "
        f"beyond {of.beyond_us:.0f} us   ({sets} sets x {rounds} rounds of {steps} steps)",
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
