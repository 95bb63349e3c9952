"""Measures how much the monitor slows down a training.

    python bench/overhead.py [--short] [--sets 4] [--rounds 40] [--wall] [--only parts|processes]

Three kinds of the same small training take turns of a few steps: a plain process (`plain`), one under `foreshock run`
that never samples (`unsampled`), and one under `foreshock run` with default options (`default`). A round is one turn of
each kind, in random order. A set is one process of each kind, all with one thread on the same core, so that they differ
only in the monitor. Several sets are needed, since memory layouts differ. The agent runs on another core.

Time is the CPU time of the trainer. It excludes the time of other processes on the core, so the figures are also valid
on a shared machine. With --wall it is wall time (except in `step` below), which needs an idle machine. The CPU time of
the agent, the process that judges samples, is printed in a separate line, as a share of one core. The line `ours` has
the slowdown that the monitor itself measures, over the whole training without its first samples (docs/overhead.md).

A second method, the line `by parts`, is more accurate if turns of one process differ by more than the goals. It adds
the costs of three parts: work at each step (`step`), slices (copied parts of attention calls), and snapshots of
weights. `step` is measured in a training of one parameter, whose time is nearly all spent in the framework. Slices and
snapshots are measured in trainings with one at every step, so that they cost more than the noise. `foreshock pause` and
`resume` switch the monitor of these trainings off and on. Each turn with the monitor on is compared with the turns
before and after.
The sum is the cost of a step, of a slice and of a snapshot, each times its number per step in a default training.

Prints the slowdown, (time with the monitor / time without) - 1: the median over sets of the medians over rounds, and
its 95 % interval (bootstrap over sets, then rounds). Goals: at most 0.3 % unsampled, 1 % by default. A missed goal
fails nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from typing import Any, NamedTuple

from turns.trainers import EVERY_STEP, KINDS, Rounds, interval, one_of_each, slices_of

GOALS = {"unsampled": 0.003, "default": 0.01}  # by kind: slowdown
DEFAULT_STEPS = 1024  # length of the default training; several intervals between snapshots of a weight
SHORT_DEFAULT_STEPS = 64  # the same with --short
LEAST_ROUNDS = 20  # rounds of a set; with fewer, an interval is not meaningful
SHORT_SECONDS = 45  # --short starts no further round after this time


def verdict(low: float, high: float, goal: float, sets: int, rounds: int) -> str:
    """Whether the interval from `low` to `high` is below the goal: wholly (met), partly (not shown) or not (missed)."""
    if sets < 2 or rounds < LEAST_ROUNDS:
        return "too few rounds"
    return "met" if high <= goal else "not shown" if low <= goal else "missed"


def measure_gpt(sets: int, rounds: Rounds, steps: int, warm_up: int, clock: str, cores: list[int]) -> None:
    """Compares processes of the three kinds. `steps`: steps of a turn. `warm_up`: first steps, which do not count.
    `clock`: "cpu" or "wall"."""
    slowdowns: dict[str, list[list[float]]] = {kind: [] for kind in GOALS}  # by kind, set and round
    # Of the default training: its reported slowdowns and the agent's shares of a core, by set; slices of all sets.
    reported, shares, slices = [], [], 0
    for number in range(sets):
        with one_of_each("gpt", tuple(KINDS), cores) as trainers:
            for trainer in trainers.values():
                trainer.turn(warm_up)
            in_set: dict[str, list[float]] = {kind: [] for kind in GOALS}
            agent_begin, default_seconds = trainers["default"].agent_cpu_seconds(), 0.0
            random_order = random.Random(number)
            for _ in rounds:
                order = list(KINDS)
                random_order.shuffle(order)
                took = {kind: trainers[kind].turn(steps) for kind in order}
                for kind in GOALS:
                    in_set[kind].append(took[kind][clock] / took["plain"][clock] - 1)
                default_seconds += took["default"]["wall"]
            shares.append((trainers["default"].agent_cpu_seconds() - agent_begin) / default_seconds)
            for kind in GOALS:
                slowdowns[kind].append(in_set[kind])
            rank = trainers["default"].finish()
            reported.append(rank["slowdown_ratio"])
            slices += slices_of(rank)
    extent = f"{sets} sets x {len(slowdowns['default'][-1])} rounds of {steps} steps, {clock} time"
    for kind, goal in GOALS.items():
        middle, low, high = interval(slowdowns[kind])
        word = verdict(low, high, goal, sets, len(slowdowns[kind][-1]))
        print(f"{kind:<10} {middle:+.2%}  [{low:+.2%}, {high:+.2%}]  goal {goal:.1%}: {word}   ({extent})", flush=True)
    print(
        f"{'ours':<10} {statistics.median(reported):+.2%}  as the monitor accounts for it, its agent's CPU included; "
        f"{slices} slices",
        flush=True,
    )
    print(f"{'agent':<10} {statistics.median(shares):+.2%}  of one core, while the default training ran", flush=True)


class Switched(NamedTuple):
    """Results of trainings whose monitor was switched off and on."""

    added: list[list[float]]  # by set and round: seconds that the monitor adds to a step
    plain_seconds: float  # seconds of a step with the monitor off
    slices_per_step: float  # with the monitor on
    snapshots_per_step: float  # snapshots of weights, with the monitor on

    def seconds_of_one(self, per_step: float) -> tuple[float, float, float]:
        """Seconds of one slice or snapshot (middle, low, high of interval()), if each step has `per_step` of them."""
        return tuple(seconds / per_step for seconds in interval(self.added))


def measure_switched(
    kind: str, sets: int, rounds: Rounds, steps: int, warm_up: int, clock: str, cores: list[int]
) -> Switched:
    """Measures a training whose monitor is paused in every other turn. `kind`, a key of EVERY_STEP: "slices" takes a
    slice at every step and no snapshot, "weights" a snapshot and no slice. Other arguments: as in measure_gpt()."""
    added, plain, slices, snapshots, on_steps = [], [], 0, 0, 0
    for _ in range(sets):
        with one_of_each("gpt", (kind,), cores) as trainers:
            trainer = trainers[kind]
            trainer.turn(warm_up)
            off, on = [], []
            for _ in rounds:
                trainer.switch("pause")
                off.append(trainer.turn(steps)[clock] / steps)
                trainer.switch("resume")
                on.append(trainer.turn(steps)[clock] / steps)
            trainer.switch("pause")
            off.append(trainer.turn(steps)[clock] / steps)
            trainer.switch("resume")  # a paused trainer would not report its end
            rank = trainer.finish()
        turns = zip(off[:-1], on, off[1:], strict=True)
        added.append([seconds - (before + after) / 2 for before, seconds, after in turns])
        plain += off
        slices += slices_of(rank)
        snapshots += rank["weights"]["snapshots"]
        # Steps with the monitor on. Each switch("resume") runs one of them, also the last one, which no turn follows.
        on_steps += warm_up + (steps + 1) * len(on) + 1
    return Switched(added, statistics.median(plain), slices / on_steps, snapshots / on_steps)


def measure_parts(
    per_step: tuple[float, float, float], sets: int, rounds: Rounds, default_steps: int, **how: Any
) -> None:
    """Prints the parts and their sum. `per_step`: result of measure_step(). `how`: other arguments of
    measure_switched()."""
    by_kind = {kind: measure_switched(kind, sets, rounds, **how) for kind in EVERY_STEP}
    slices, weights = by_kind["slices"], by_kind["weights"]
    per_slice = slices.seconds_of_one(slices.slices_per_step)
    per_snapshot = weights.seconds_of_one(weights.snapshots_per_step)
    with one_of_each("gpt", ("default",), how["cores"]) as trainers:
        trainers["default"].turn(default_steps)
        rank = trainers["default"].finish()
    slices_per_step = slices_of(rank) / rank["steps"]
    snapshots_per_step = rank["weights"]["snapshots"] / rank["steps"]
    step_seconds = statistics.median([slices.plain_seconds, weights.plain_seconds])
    # The bounds are added, which assumes that all errors have the same direction.
    middle, low, high = (
        (step + slices_per_step * one_slice + snapshots_per_step * snapshot) / step_seconds
        for step, one_slice, snapshot in zip(per_step, per_slice, per_snapshot, strict=True)
    )
    extent = f"{sets} sets x {len(slices.added[-1])} rounds of {how['steps']} steps of {step_seconds * 1e3:.0f} ms"
    for name, (one, least, most), rate in (
        ("slice", per_slice, slices_per_step), ("snapshot", per_snapshot, snapshots_per_step)
    ):  # fmt: skip
        print(
            f"{name:<10} {one * 1e6:+.0f} us  [{least * 1e6:+.0f}, {most * 1e6:+.0f}]  each; {rate:.2g} of them a step "
            f"by default   ({extent}, {how['clock']} time)",
            flush=True,
        )
    word = verdict(low, high, GOALS["default"], sets, len(slices.added[-1]))
    print(f"{'by parts':<10} {middle:+.2%}  [{low:+.2%}, {high:+.2%}]  goal {GOALS['default']:.1%}: {word}", flush=True)


def measure_step(sets: int, rounds: Rounds, steps: int, cores: list[int]) -> tuple[float, float, float]:
    """The CPU seconds that the monitor adds to a step without a sample: middle, low, high. Prints them too."""
    added, plain = [], []  # microseconds per step
    for number in range(sets):
        with one_of_each("step", ("plain", "unsampled"), cores) as trainers:
            for trainer in trainers.values():
                trainer.turn(4 * steps)  # warm-up
            random_order, in_set = random.Random(number), []
            for _ in rounds:
                order = ["plain", "unsampled"]
                random_order.shuffle(order)
                took = {kind: trainers[kind].turn(steps)["cpu"] / steps * 1e6 for kind in order}
                in_set.append(took["unsampled"] - took["plain"])
                plain.append(took["plain"])
            added.append(in_set)
    middle, low, high = interval(added)
    print(
        f"{'step':<10} {middle:+.1f} us  [{low:+.1f}, {high:+.1f}]  on a step of {statistics.median(plain):.0f} us "
        f"with one attention call each way   ({sets} sets x {len(in_set)} rounds of {steps} steps, cpu time)",
        flush=True,
    )
    return middle / 1e6, low / 1e6, high / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one set, within a minute: shows that it runs")
    parser.add_argument("--sets", type=int, default=4, help="processes of each kind, one after the other")
    parser.add_argument("--rounds", type=int, default=40, help="turns of each process")
    parser.add_argument("--wall", action="store_true", help="wall-clock time: on an idle machine")
    parser.add_argument("--only", choices=["parts", "processes"])
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    sets = 1 if arguments.short else arguments.sets
    deadline = time.monotonic() + (SHORT_SECONDS if arguments.short else float("inf"))
    rounds = Rounds(5 if arguments.short else arguments.rounds, deadline)
    clock = "wall" if arguments.wall else "cpu"
    # Multiples of the smallest sampling interval (8): turns have equally many samples if the interval divides the turn.
    steps, warm_up = (8, 8) if arguments.short else (16, 64)
    if arguments.only in (None, "parts"):
        per_step = measure_step(sets, rounds, steps=200 if arguments.short else 500, cores=cores)
        default_steps = SHORT_DEFAULT_STEPS if arguments.short else DEFAULT_STEPS
        how = {"steps": steps, "warm_up": warm_up, "clock": clock, "cores": cores}
        measure_parts(per_step, sets, rounds, default_steps, **how)
    if arguments.only in (None, "processes"):
        measure_gpt(sets, rounds, steps, warm_up, clock, cores)


if __name__ == "__main__":
    main()
