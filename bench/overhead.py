"""What the monitor costs a training.

    python bench/overhead.py [--short] [--sets 4] [--rounds 40] [--wall] [--only parts|processes]

Three kinds of the same small training take turns of a few steps: a plain process, one under `foreshock run` that never
samples, and one under `foreshock run` with default options. A round is one turn of each, in random order. A set is one
process of each kind, all with one thread on the same core, so that they differ only in the monitor. Two processes of
one kind still differ (in the layout of their memory), so there are several sets. The agent runs on another core.

Time is the CPU time of the trainer. It excludes the time of other processes on the core, so the figures are also valid
on a shared machine. With --wall it is wall time, which needs an idle machine. The CPU time of the agent, the process
that judges samples, is printed in a separate line, as a share of one core. `ours` is the cost of the same turns as the
monitor measures it (for --max-slowdown).

`by parts` is more accurate if two turns of one process differ by more than the goal. It adds the costs of three parts:
work at each step (`step`), copies of parts of attention calls (slices), and snapshots of weights. `step` is measured in
a training of one parameter, whose time is nearly all spent in the framework. Slices and snapshots are measured in a
training that takes one at every step, so that their cost is larger than the noise. `foreshock pause` and `resume`
switch the monitor between turns; each turn with the monitor on is compared with the turns before and after it. The sum
is the cost of a step, of a slice and of a snapshot, each times its number per step in an undisturbed default training.

Printed: the median over the rounds of time with / time without - 1, and its 95 % interval from a bootstrap that draws
sets, then rounds within them. Goals: at most 0.3 % without samples and 1 % by default. A missed goal is only printed.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from typing import Any, NamedTuple

from turns.trainers import KINDS, OFTEN, Rounds, interval, one_of_each, slices_of

GOALS = {"unsampled": 0.003, "default": 0.01}
DEFAULT_STEPS = 1024  # length of the default training; several weight intervals
SHORT_DEFAULT_STEPS = 64
LEAST_ROUNDS = 20  # rounds of a set; with fewer, an interval is not meaningful
SHORT_SECONDS = 45  # --short starts no further round after this time


def verdict(high: float, low: float, goal: float, sets: int, rounds: int) -> str:
    """Whether the interval from `low` to `high` is below the goal: all of it (met), a part, or nothing (missed)."""
    if sets < 2 or rounds < LEAST_ROUNDS:
        return "too few rounds"
    return "met" if high <= goal else "not shown" if low <= goal else "missed"


def measure_gpt(sets: int, rounds: Rounds, steps: int, warm_up: int, clock: str, cores: list[int]) -> None:
    """Compares processes of the three kinds. `steps`: of a turn. `warm_up`: first steps, which are not measured."""
    ratios: dict[str, list[list[float]]] = {kind: [] for kind in GOALS}
    ours, agent, sampled = [], [], 0
    for number in range(sets):
        with one_of_each("gpt", tuple(KINDS), cores) as trainers:
            for trainer in trainers.values():
                trainer.turn(warm_up)
            kept: dict[str, list[float]] = {kind: [] for kind in GOALS}
            agent_begin, default_seconds = trainers["default"].agent_cpu_seconds(), 0.0
            random_order = random.Random(number)
            for _ in rounds:
                order = list(KINDS)
                random_order.shuffle(order)
                took = {kind: trainers[kind].turn(steps) for kind in order}
                for kind in GOALS:
                    kept[kind].append(took[kind][clock] / took["plain"][clock] - 1)
                default_seconds += took["default"]["wall"]
            agent.append((trainers["default"].agent_cpu_seconds() - agent_begin) / default_seconds)
            for kind in GOALS:
                ratios[kind].append(kept[kind])
            rank = trainers["default"].finish()
            ours.append(rank["slowdown_ratio"])
            sampled += slices_of(rank)
    count = f"{sets} sets x {len(ratios['default'][-1])} rounds of {steps} steps, {clock} time"
    for kind, goal in GOALS.items():
        middle, low, high = interval(ratios[kind])
        word = verdict(high, low, goal, sets, len(ratios[kind][-1]))
        print(f"{kind:<10} {middle:+.2%}  [{low:+.2%}, {high:+.2%}]  goal {goal:.1%}: {word}   ({count})", flush=True)
    print(
        f"{'ours':<10} {statistics.median(ours):+.2%}  as the monitor accounts for it, its agent's CPU included; "
        f"{sampled} slices",
        flush=True,
    )
    print(f"{'agent':<10} {statistics.median(agent):+.2%}  of one core, while the default training ran", flush=True)


class Switched(NamedTuple):
    """Results of trainings whose monitor was switched off and on."""

    added: list[list[float]]  # by set and round: seconds that the monitor adds to a step
    seconds: float  # of a step with the monitor off
    slices: float  # per step with the monitor on
    snapshots: float  # per step with the monitor on

    def each(self, count: float) -> tuple[float, float, float]:
        """Seconds of one slice or snapshot, if a step has `count` of them: middle, low, high."""
        return tuple(seconds / count for seconds in interval(self.added))


def switched(kind: str, sets: int, rounds: Rounds, steps: int, warm_up: int, clock: str, cores: list[int]) -> Switched:
    """Measures a training whose monitor is paused in every other turn. `kind`: one of OFTEN."""
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
        added.append([now - (a + b) / 2 for now, a, b in zip(on, off[:-1], off[1:], strict=True)])
        plain += off
        slices += slices_of(rank)
        snapshots += rank["weights"]["snapshots"]
        on_steps += warm_up + (steps + 1) * len(on) + 1  # each resume takes one step
    return Switched(added, statistics.median(plain), slices / on_steps, snapshots / on_steps)


def measure_parts(
    per_step: tuple[float, float, float], sets: int, rounds: Rounds, default_steps: int, **how: Any
) -> None:
    """Prints the sum of the parts. `per_step`: seconds that the monitor adds to every step: middle, low, high."""
    often = {kind: switched(kind, sets, rounds, **how) for kind in OFTEN}
    slices, weights = often["slices"], often["weights"]
    per_slice, per_snapshot = slices.each(slices.slices), weights.each(weights.snapshots)
    with one_of_each("gpt", ("default",), how["cores"]) as trainers:
        trainers["default"].turn(default_steps)
        rank = trainers["default"].finish()
    of_slices = slices_of(rank) / rank["steps"]
    of_snapshots = rank["weights"]["snapshots"] / rank["steps"]
    seconds = statistics.median([slices.seconds, weights.seconds])
    # The bounds are added, which assumes that all errors have the same direction.
    middle, low, high = (
        (step + of_slices * one_slice + of_snapshots * snapshot) / seconds
        for step, one_slice, snapshot in zip(per_step, per_slice, per_snapshot, strict=True)
    )
    count = f"{sets} sets x {len(slices.added[-1])} rounds of {how['steps']} steps of {seconds * 1e3:.0f} ms"
    for name, (one, least, most), rate in (
        ("slice", per_slice, of_slices), ("snapshot", per_snapshot, of_snapshots)
    ):  # fmt: skip
        print(
            f"{name:<10} {one * 1e6:+.0f} us  [{least * 1e6:+.0f}, {most * 1e6:+.0f}]  each; {rate:.2g} of them a step "
            f"by default   ({count}, {how['clock']} time)",
            flush=True,
        )
    word = verdict(high, low, GOALS["default"], sets, len(slices.added[-1]))
    print(f"{'by parts':<10} {middle:+.2%}  [{low:+.2%}, {high:+.2%}]  goal {GOALS['default']:.1%}: {word}", flush=True)


def measure_step(sets: int, rounds: Rounds, steps: int, cores: list[int]) -> tuple[float, float, float]:
    """Seconds that the monitor adds to a step without a sample: middle, low, high."""
    added, plain = [], []
    for number in range(sets):
        with one_of_each("step", ("plain", "unsampled"), cores) as trainers:
            for trainer in trainers.values():
                trainer.turn(4 * steps)
            random_order, kept = random.Random(number), []
            for _ in rounds:
                order = ["plain", "unsampled"]
                random_order.shuffle(order)
                took = {kind: trainers[kind].turn(steps)["cpu"] / steps * 1e6 for kind in order}
                kept.append(took["unsampled"] - took["plain"])
                plain.append(took["plain"])
            added.append(kept)
    middle, low, high = interval(added)
    print(
        f"{'step':<10} {middle:+.1f} us  [{low:+.1f}, {high:+.1f}]  on a step of {statistics.median(plain):.0f} us "
        f"with one attention call each way   ({sets} sets x {len(kept)} rounds of {steps} steps, cpu time)",
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
    # A turn is a multiple of the smallest sampling interval, so that all turns have equally many sampled steps.
    steps, warm_up = (8, 8) if arguments.short else (16, 64)
    if arguments.only in (None, "parts"):
        per_step = measure_step(sets, rounds, 200 if arguments.short else 500, cores)
        default_steps = SHORT_DEFAULT_STEPS if arguments.short else DEFAULT_STEPS
        how = {"steps": steps, "warm_up": warm_up, "clock": clock, "cores": cores}
        measure_parts(per_step, sets, rounds, default_steps, **how)
    if arguments.only in (None, "processes"):
        measure_gpt(sets, rounds, steps, warm_up, clock, cores)


if __name__ == "__main__":
    main()
