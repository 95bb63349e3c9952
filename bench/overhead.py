"""What the monitor costs a training.

    python bench/overhead.py [--short] [--sets 4] [--rounds 40] [--wall] [--only parts|processes]

Three kinds of the same small training take turns of a few steps: a plain process, one under `foreshock run` that never
samples, and one under `foreshock run` with default options. One turn of each, in random order, is a round. A set is one
process of each kind, all on the same core and of one thread, so that they differ in nothing but the monitor; two
processes of one kind still differ (where their memory lies), so there are several sets. The agent runs on another core.

Time is the CPU time of the trainer: it does not count while somebody else has the core, so the figures also mean
something on a shared machine; with --wall it is the clock on the wall, which needs an idle one. The agent's CPU time is
a line of its own, as a share of one core. `ours` is what the monitor itself says that it took (the control of
--max-slowdown), of the same turns.

`by parts` is the sharper figure, for a machine on which two turns of one process differ by more than the goal. What the
monitor does in a default training is a sum: something at each step (`step`: a training of one parameter, nearly all of
whose time is the framework's), slices of attention, snapshots of weights. The last two are done at every step here, in
a process that `foreshock pause` and `resume` switch off and on between turns, so that their cost stands out and nothing
else differs; each turn with it on stands beside the two around it. What one slice and one snapshot cost, times how many
a default training takes a step (counted in one that is left alone), is the sum.

Printed: the median over the rounds of time with / time without - 1, and its 95 % interval from a bootstrap that draws
sets, then rounds within them. Goals (DESIGN): at most 0.3 % and 1 %. A report, not a gate.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")).resolve()
CACHE = os.environ.get("FORESHOCK_CACHE", str(ROOT / "build" / "adapters"))
GOALS = {"unsampled": 0.003, "default": 0.01}
NEVER = str(1 << 20)  # the most that --every takes, and more steps than any turn here
KINDS = {"plain": None, "unsampled": ("--every", NEVER), "default": ()}
RECORDED = {"recorded": ("--record", "{base}/record")}  # otherwise the defaults
# One part of the work at every step: its cost stands out of the noise.
OFTEN = {
    "slices": ("--every", "1", "--weights", "off", "--max-slowdown", "100%"),
    "weights": ("--every", NEVER, "--weights", "1", "--max-slowdown", "100%"),
}
DEFAULT_STEPS = 1024  # of a default training that is counted: several intervals between two snapshots of a tensor
SHORT_DEFAULT_STEPS = 64
LEAST_ROUNDS = 20  # of a set; with fewer an interval says nothing
SHORT_SECONDS = 45  # after which --short begins no further round
CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}


# -- in the trainer --


def gpt() -> Callable[[], None]:
    """One step of the GPT of the demo."""
    sys.path.insert(0, str(ROOT / "integrations" / "torch" / "demo"))
    import torch
    import train

    text, autocast, size = train.Text(1), train.native_bf16(), train.SIZES[1]
    model = train.Gpt(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [text.batch(size) for _ in range(8)]
    numbers = iter(range(1 << 40))

    def step() -> None:
        optimizer.zero_grad()
        train.loss_of(model, batches[next(numbers) % len(batches)], autocast).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def one_parameter() -> Callable[[], None]:
    """One step of as little as a training can be."""
    import torch

    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    query = torch.randn(1, 1, 2, 2)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.scaled_dot_product_attention(query @ weight, query, query).sum().backward()
        optimizer.step()

    return step


def tiny_gpt(layers: int, width: int, batch: int, length: int) -> Callable[[], None]:
    """One step of the GPT of the tests."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import tiny_gpt as tests
    import torch

    model = tests.TinyGpt(layers, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = tests.Batches(batch=batch, length=length)

    def step() -> None:
        optimizer.zero_grad()
        tests.loss_of(model, batches()).backward()
        optimizer.step()

    return step


def serve(what: str) -> None:
    """Answers every line on stdin, a number of steps, with the seconds they took by each clock, as JSON."""
    import torch

    torch.set_num_threads(1)
    step = {"gpt": gpt, "step": one_parameter}.get(what, lambda: tiny_gpt(*map(int, what.split(","))))()
    for line in sys.stdin:
        begin = {name: clock() for name, clock in CLOCKS.items()}
        for _ in range(int(line)):
            step()
        print(json.dumps({name: clock() - begin[name] for name, clock in CLOCKS.items()}), flush=True)


# -- here --


def cpu_seconds_of(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Trainer:
    """A training of one kind, on one core, that stands still between turns."""

    def __init__(self, kind: str, what: str, base: pathlib.Path, cores: list[int]) -> None:
        self.base = base / f"{kind}-{what}"
        self.base.mkdir()
        self.summary = self.base / "summary.json"
        line = [sys.executable, __file__, "--serve", what]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FORESHOCK")} | {"OMP_NUM_THREADS": "1"}
        options = (KINDS | OFTEN | RECORDED)[kind]
        if options is not None:
            options = [option.format(base=self.base) for option in options]
            run = [str(BUILD / "bin" / "foreshock"), "run", "--port", "0", "--run-id", "bench"]
            line = [*run, "--summary", str(self.summary), *options, "--", "taskset", "-c", str(cores[0]), *line]
            environment |= {"FORESHOCK_DIR": str(self.base), "FORESHOCK_CACHE": CACHE}
        else:
            line = ["taskset", "-c", str(cores[0]), *line]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process = subprocess.Popen(line, env=environment, stderr=subprocess.DEVNULL, **pipes)

    def turn(self, steps: int) -> dict[str, float]:
        self.process.stdin.write(f"{steps}\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"overhead: {self.base.name} ended with status {self.process.wait()}")
        return json.loads(answer)

    def agent_cpu_seconds(self) -> float:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return cpu_seconds_of(json.loads((self.base / "bench" / "agent.json").read_text())["pid"])
        return 0

    def switch(self, command: str) -> None:
        """`pause` or `resume`; in force from the next step on."""
        line = [str(BUILD / "bin" / "foreshock"), command, "--run-id", "bench"]
        subprocess.run(line, env=os.environ | {"FORESHOCK_DIR": str(self.base)}, check=True, capture_output=True)
        self.turn(1)

    def finish(self) -> dict:
        """Its rank in the summary; {} of a plain one."""
        self.process.stdin.close()
        self.process.wait()
        return json.loads(self.summary.read_text())["ranks"][0] if self.summary.exists() else {}


def slices_of(rank: dict) -> int:
    """Of both passes, as its summary has them."""
    return sum(of["sampled"] for of in rank["attention"].values())


@contextlib.contextmanager
def one_of_each(what: str, kinds: tuple[str, ...], cores: list[int]) -> Iterator[dict[str, Trainer]]:
    base = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-bench-", dir="/dev/shm"))
    trainers: dict[str, Trainer] = {}
    try:
        for kind in kinds:
            trainers[kind] = Trainer(kind, what, base, cores)
        yield trainers
    finally:
        for trainer in trainers.values():
            trainer.process.kill()
        shutil.rmtree(base, ignore_errors=True)


def interval(sets: list[list[float]], draws: int = 2000) -> tuple[float, float, float]:
    """Median of the medians of the sets, and the 2.5 % and 97.5 % points of its bootstrap."""
    chance = random.Random(1)

    def estimate(chosen: list[list[float]]) -> float:
        return statistics.median(statistics.median(rounds) for rounds in chosen)

    def draw(values: list) -> list:
        return chance.choices(values, k=len(values))

    drawn = sorted(estimate([draw(rounds) for rounds in draw(sets)]) for _ in range(draws))
    return estimate(sets), drawn[int(0.025 * draws)], drawn[int(0.975 * draws)]


def verdict(high: float, low: float, goal: float, sets: int, rounds: int) -> str:
    if sets < 2 or rounds < LEAST_ROUNDS:
        return "too few rounds to tell"
    return "met" if high <= goal else "not shown" if low <= goal else "missed"


class Rounds:
    """As many rounds as asked for, fewer when the time is up, but never fewer than two."""

    def __init__(self, rounds: int, deadline: float) -> None:
        self.rounds, self.deadline = rounds, deadline

    def __iter__(self) -> Iterator[int]:
        for number in range(self.rounds):
            if number >= 2 and time.monotonic() > self.deadline:
                return
            yield number


def measure_gpt(sets: int, rounds: Rounds, steps: int, warm_up: int, clock: str, cores: list[int]) -> None:
    ratios: dict[str, list[list[float]]] = {kind: [] for kind in GOALS}
    ours, agent, sampled = [], [], 0
    for number in range(sets):
        with one_of_each("gpt", tuple(KINDS), cores) as trainers:
            for trainer in trainers.values():
                trainer.turn(warm_up)
            kept: dict[str, list[float]] = {kind: [] for kind in GOALS}
            agent_begin, default_seconds = trainers["default"].agent_cpu_seconds(), 0.0
            chance = random.Random(number)
            for _ in rounds:
                order = list(KINDS)
                chance.shuffle(order)
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
        told = verdict(high, low, goal, sets, len(ratios[kind][-1]))
        print(f"{kind:<10} {middle:+.2%}  [{low:+.2%}, {high:+.2%}]  goal {goal:.1%}: {told}   ({count})", flush=True)
    print(
        f"{'ours':<10} {statistics.median(ours):+.2%}  as the monitor accounts for it, its agent's CPU included; "
        f"{sampled} slices",
        flush=True,
    )
    print(f"{'agent':<10} {statistics.median(agent):+.2%}  of one core, while the default training ran", flush=True)


class Switched(NamedTuple):
    """Of trainings that were switched off and on, per set and round."""

    added: list[list[float]]  # seconds of a step with the monitor on, less those around it with it off
    seconds: float  # of a step with it off
    slices: float  # of a step with it on
    snapshots: float

    def each(self, count: float) -> tuple[float, float, float]:
        return tuple(seconds / count for seconds in interval(self.added))


def switched(kind: str, sets: int, rounds: Rounds, steps: int, warm_up: int, clock: str, cores: list[int]) -> Switched:
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
            trainer.switch("resume")  # or its end would not be told
            rank = trainer.finish()
        added.append([now - (a + b) / 2 for now, a, b in zip(on, off[:-1], off[1:], strict=True)])
        plain += off
        slices += slices_of(rank)
        snapshots += rank["weights"]["snapshots"]
        on_steps += warm_up + (steps + 1) * len(on) + 1
    return Switched(added, statistics.median(plain), slices / on_steps, snapshots / on_steps)


def measure_parts(
    per_step: tuple[float, float, float], sets: int, rounds: Rounds, default_steps: int, **how: Any
) -> None:
    """`per_step`: what the monitor adds to any step, in seconds."""
    often = {kind: switched(kind, sets, rounds, **how) for kind in OFTEN}
    slices, weights = often["slices"], often["weights"]
    per_slice, per_snapshot = slices.each(slices.slices), weights.each(weights.snapshots)
    with one_of_each("gpt", ("default",), how["cores"]) as trainers:
        trainers["default"].turn(default_steps)
        rank = trainers["default"].finish()
    of_slices = slices_of(rank) / rank["steps"]
    of_snapshots = rank["weights"]["snapshots"] / rank["steps"]
    seconds = statistics.median([slices.seconds, weights.seconds])
    # Bounds add up as if all were wrong in the same direction at once.
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
    told = verdict(high, low, GOALS["default"], sets, len(slices.added[-1]))
    print(f"{'by parts':<10} {middle:+.2%}  [{low:+.2%}, {high:+.2%}]  goal {GOALS['default']:.1%}: {told}", flush=True)


def measure_step(sets: int, rounds: Rounds, steps: int, cores: list[int]) -> tuple[float, float, float]:
    """Seconds that the monitor adds to a step without a sample, with bounds."""
    added, plain = [], []
    for number in range(sets):
        with one_of_each("step", ("plain", "unsampled"), cores) as trainers:
            for trainer in trainers.values():
                trainer.turn(4 * steps)
            chance, kept = random.Random(number), []
            for _ in rounds:
                order = ["plain", "unsampled"]
                chance.shuffle(order)
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
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    cores = sorted(os.sched_getaffinity(0))
    sets = 1 if arguments.short else arguments.sets
    deadline = time.monotonic() + (SHORT_SECONDS if arguments.short else float("inf"))
    rounds = Rounds(5 if arguments.short else arguments.rounds, deadline)
    clock = "wall" if arguments.wall else "cpu"
    # A turn is a whole number of the least sampling interval, so that each holds as many sampled steps.
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
