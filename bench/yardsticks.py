"""Measures how far another attention kernel moves the weights of a training, beside another precision or seed.

    python bench/yardsticks.py [--replicates 6] [--steps 800] [--every 40] [--out build/yardsticks]

Repeats the second phase of arXiv 2405.02803 ("the paper") on small GPTs. An arm is one training. A replicate is a set
of all arms, which have the same batches; the arm "again" is only in replicate 0. Replicates differ in the order of the
text and in the initial weights. Two arms that are compared are twins. They differ at most in one thing: the attention
kernel, the precision, or the initial weights. The results have a slope for each pair of twins except "again", with its
95 % interval over replicates: how fast the weights of the twins move apart with the steps. They also have a check of
the paper's claim that another kernel moves weights 2-5 times less than low precision does. The results go to standard
output and OUT/yardsticks.json. An interrupted bench continues when it is started again.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")).resolve()
sys.path.insert(0, str(ROOT / "bench" / "yardsticks"))

import slopes  # noqa: E402
import twins  # noqa: E402

# The two arms (keys of twins.ARMS) of each compared pair. base: fused attention in bf16; math: unfused; init: other
# initial weights; again: the same as base.
PAIRS = {
    "kernel": ("base", "math"),
    "precision": ("base", "fp32"),
    "kernel, fp32": ("fp32", "fp32 math"),
    "seed": ("base", "init"),
    "again": ("base", "again"),
}
# Pairs that are compared in one replicate only, by its number. "again" tests that a repeated training has equal bits.
ONCE = {"again": 0}
# Figures of `foreshock compare`: w1 is the Wasserstein distance of the values of two arms, mean_abs the mean magnitude
# of their differences. Slopes are computed for STATISTICS. The figures in KEPT are stored in the results.
STATISTICS = ("w1", "mean_abs")
KEPT = ("w1", "w1_low", "w1_high", "w1_noise_floor", "mean_abs", "max_abs", "relative_l2", "magnitude")
SIZES = {
    "toy": twins.demo.Size(layers=1, heads=2, kv_heads=1, width=32, context=32, batch=2),
    "small": twins.demo.Size(layers=4, heads=4, kv_heads=2, width=64, context=128, batch=4),
    "medium": twins.demo.Size(layers=4, heads=8, kv_heads=4, width=256, context=256, batch=8),
}


class ExperimentError(Exception):
    """An error that ends the program; the text is one line for the user."""


def pairs_of(replicate: int) -> dict[str, tuple[str, str]]:
    # Pairs that are not in ONCE are compared in every replicate.
    return {name: arms for name, arms in PAIRS.items() if ONCE.get(name, replicate) == replicate}


def compared(folder: pathlib.Path, pairs: dict[str, tuple[str, str]], plan: twins.Plan) -> dict[str, list[dict]]:
    """The distances of each pair at each checkpoint, over all tensors together, from one run of `foreshock compare`."""
    words: list[str] = []
    for name, arms in pairs.items():
        for step in plan.checkpoints():
            words += ["--pair", f"{name}@{step}", *(str(twins.path_of(folder / arm, step)) for arm in arms)]
    file = folder / "compared.json"
    command = [str(BUILD / "bin" / "foreshock"), "compare", "--threads", "1", "--json", str(file), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ExperimentError(f"foreshock compare ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    rows = {pair["name"]: pair["pooled"] for pair in json.loads(file.read_text())["pairs"]}
    return {
        name: [{"step": step} | {key: rows[f"{name}@{step}"][key] for key in KEPT} for step in plan.checkpoints()]
        for name in pairs
    }


def replicate(number: int, plan: twins.Plan, out: pathlib.Path, progress: Any) -> dict:
    """The result of one replicate, from its file. If the file is missing, trains and compares the arms, writes it, and
    deletes the weights. `progress` is called with the share of this work that is done, and the name of the arm."""
    result = out / f"replicate-{number}.json"
    if result.exists():
        return json.loads(result.read_text())
    folder, pairs, losses = out / f"weights-{number}", pairs_of(number), {}
    arms = sorted({arm for pair in pairs.values() for arm in pair}, key=list(twins.ARMS).index)
    for n, arm in enumerate(arms):
        seed = number + 1
        losses[arm] = twins.train(
            twins.ARMS[arm], seed, plan, folder / arm,
            lambda share, n=n, arm=arm: progress((n + share) / len(arms), arm),
        )  # fmt: skip
    found = {"replicate": number, "losses": losses, "pairs": compared(folder, pairs, plan)}
    unfinished = result.with_suffix(".part")  # renamed when complete, since an existing result is not made again
    unfinished.write_text(json.dumps(found))
    unfinished.rename(result)
    shutil.rmtree(folder)
    return found


def summarized(replicates: list[dict]) -> dict[str, Any]:
    """For each pair that is not in ONCE, the slopes and the values at the last step. The paper's claim is about the
    ratios of the pair "precision" to the kernel pairs. repeated_to_the_bit: whether "again" has the weights of "base";
    None: unknown."""
    summary: dict[str, Any] = {"slopes": {}, "last": {}, "claim": {}}
    for statistic in STATISTICS:
        slope, last = {}, {}
        for name in (pair for pair in PAIRS if pair not in ONCE):
            curves = [r["pairs"][name] for r in replicates]
            slope[name] = [slopes.slope([p["step"] for p in c], [p[statistic] for p in c]) for c in curves]
            last[name] = [c[-1][statistic] for c in curves]
        summary["slopes"][statistic] = {name: slopes.interval(values)._asdict() for name, values in slope.items()}
        summary["last"][statistic] = {name: slopes.interval(values)._asdict() for name, values in last.items()}
        for how, values in (("slope", slope), ("last", last)):
            for kernel in ("kernel", "kernel, fp32"):
                found = slopes.ratio(values["precision"], values[kernel])
                summary["claim"][f"{statistic} {how}, {kernel}"] = found._asdict() | {"verdict": slopes.verdict(found)}
    again = [p["max_abs"] for r in replicates for p in r["pairs"].get("again", [])]
    summary["repeated_to_the_bit"] = all(value == 0 for value in again) if again else None
    return summary


def show(summary: dict[str, Any]) -> None:
    def text(found: dict) -> str:
        return f"{found['mean']:.3g} [{found['low']:.3g}, {found['high']:.3g}]"

    print(f"one training repeated has the same bits: {summary['repeated_to_the_bit']}")
    for what in ("slopes", "last"):
        for statistic, pairs in summary[what].items():
            print(f"{what} of {statistic}: " + "; ".join(f"{name} {text(found)}" for name, found in pairs.items()))
    for name, found in summary["claim"].items():
        print(f"precision over kernel by {name}: {text(found)}: 2-5 times is {found['verdict']}")


def check_plan(out: pathlib.Path, plan: dict) -> None:
    """Stores the plan in `out`. Raises an error if `out` holds an experiment with another plan."""
    file = out / "plan.json"
    if file.exists() and json.loads(file.read_text()) != plan:
        raise ExperimentError(f"{out} holds another experiment ({file.read_text()}); give another --out")
    file.write_text(json.dumps(plan))


def run(options: argparse.Namespace) -> None:
    plan = twins.Plan(SIZES[options.size], options.steps, options.every)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    check_plan(out, {"size": options.size, "steps": options.steps, "every": options.every})
    begin, replicates = time.monotonic(), []
    for number in range(options.replicates):

        def progress(share: float, arm: str, number: int = number) -> None:
            whole = (number + share) / options.replicates
            print(f"{whole:6.1%}  replicate {number + 1} of {options.replicates}, {arm}", file=sys.stderr, flush=True)

        replicates.append(replicate(number, plan, out, progress))
    summary = summarized(replicates)
    setup = {
        "parameters": sum(p.numel() for p in twins.demo.Gpt(plan.size).parameters()),
        "size": plan.size.__dict__, "steps": plan.steps, "every": plan.every, "replicates": options.replicates,
        "torch": twins.torch.__version__, "seconds": time.monotonic() - begin,
    }  # fmt: skip
    whole = slopes.no_nan({"schema": 1, "setup": setup, "summary": summary, "replicates": replicates})
    (out / "yardsticks.json").write_text(json.dumps(whole, indent=1))
    show(summary)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicates", type=int, default=6)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--every", type=int, default=40, help="steps between two checkpoints")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--out", default=str(ROOT / "build" / "yardsticks"))
    options = parser.parse_args()
    if options.replicates < 1 or options.every < 1 or options.steps < 2 * options.every:
        print("yardsticks: give at least one replicate and two checkpoints", file=sys.stderr)
        return 2
    try:
        run(options)
    except ExperimentError as error:
        print(f"yardsticks: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
