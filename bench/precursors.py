"""How often each detector is right, how early, and how often it cries wolf: on trainings that go wrong and their twins.

    python bench/precursors.py [--seeds 8] [--recipes NAME,...] [--minutes 120] [--out build/precursors] [--short]

Each recipe (bench/precursors/recipes.py) is trained with its fault and without, under `foreshock run --record`, one
training at a time, at nice 19. Records are kept in OUT/records and never made twice; what `foreshock detect` says of
them is scored by the protocol of bench/precursors/scoring.py. Written: OUT/report.html, and OUT/results.json, of which
`./dev docs` makes docs/precursors.md once it lies at bench/precursors/results.json (--keep puts it there).
After --minutes nothing further is trained, and what is unfinished is thrown away; the next time goes on from there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
HERE = ROOT / "bench" / "precursors"
sys.path[:0] = [str(HERE), str(ROOT / "bench" / "yardsticks")]

import comparison  # noqa: E402
import page  # noqa: E402
import recipes  # noqa: E402
import recording  # noqa: E402
import tables  # noqa: E402

SHORT = {"recipes": "corrupt-batches", "seeds": 1, "steps": 330, "nice": 0}


def identity(steps: int | None) -> dict[str, Any]:
    """What makes records of different times one experiment."""
    sources = b"".join((HERE / name).read_bytes() for name in ("training.py", "recipes.py"))
    return {"trainings": hashlib.sha256(sources).hexdigest()[:16], "monitor": recording.MONITOR, "steps": steps}


def check_identity(out: pathlib.Path, wanted: dict[str, Any]) -> None:
    """One directory holds one experiment."""
    file, text = out / "identity.json", json.dumps(wanted)
    if file.exists() and file.read_text() != text:
        raise recording.RecordingError(f"{out} holds records of another experiment; give another --out")
    file.write_text(text)


def wanted_trainings(options: argparse.Namespace) -> list[tuple[recipes.Recipe, str, int]]:
    """Seed by seed, so that whenever time is up every recipe has been tried about equally often."""
    names = options.recipes.split(",") if options.recipes else [each.name for each in recipes.RECIPES]
    unknown = [name for name in names if name not in {each.name for each in recipes.RECIPES}]
    if unknown:
        known = " ".join(each.name for each in recipes.RECIPES)
        raise recording.RecordingError(f"no recipe '{unknown[0]}'; there are: {known}")
    first = {each.name: comparison.first_seed(n) for n, each in enumerate(recipes.RECIPES)}
    return [
        (recipes.recipe(name), arm, first[name] + n)
        for n in range(options.seeds)
        for name in names
        for arm in recipes.ARMS
    ]


def scored(what: recipes.Recipe, arm: str, seed: int, path: pathlib.Path) -> dict:
    """The reduced training; made once for each version of the detectors and of the reduction."""
    sources = b"".join((HERE / name).read_bytes() for name in ("recording.py", "alarms.py", "scoring.py"))
    key = hashlib.sha256(sources + recording.FORESHOCK.read_bytes()).hexdigest()[:16]
    file = path.with_suffix(f".{key}.json")
    if not file.exists():
        for old in path.parent.glob(f"{path.stem}.*.json"):
            old.unlink()
        file.write_text(json.dumps(page.no_nan(recording.reduced(path, what, arm, seed))))
    return json.loads(file.read_text())


def trainings(options: argparse.Namespace, out: pathlib.Path, deadline: float) -> list[dict]:
    wanted = wanted_trainings(options)
    (out / "records").mkdir(parents=True, exist_ok=True)
    check_identity(out, identity(options.steps))
    found = []
    for n, (what, arm, seed) in enumerate(wanted):
        path = out / "records" / f"{what.name}-{arm}-{seed}.jsonl"
        left = deadline - time.monotonic()
        if not path.exists() and left > 0 and not options.score:
            steps = min(what.steps, options.steps or what.steps)
            begin = time.monotonic()
            if recording.record(what, arm, seed, steps, path, left, options.nice):
                took = f"{time.monotonic() - begin:.0f} s"
                print(f"{n / len(wanted):6.1%}  {what.name}, {arm}, seed {seed}: {took}", file=sys.stderr, flush=True)
        if path.exists():
            found.append(scored(what, arm, seed, path))
    if not found:
        raise recording.RecordingError(f"no training in {out}: nothing to score")
    return comparison.completed(found)


def run(options: argparse.Namespace) -> None:
    begin = time.monotonic()
    out = pathlib.Path(options.out)
    found = trainings(options, out, begin + 60 * options.minutes)
    results = page.no_nan(comparison.results(found, options.steps))
    (out / "results.json").write_text(json.dumps(results, indent=1))
    drawn = page.no_nan(results | {"curves": comparison.curves(found)})
    (out / "report.html").write_text(page.report(drawn, "foreshock precursors", HERE / "precursors.js"))
    if options.keep:
        (HERE / "results.json").write_text(json.dumps(results, separators=(",", ":")) + "\n")
    print(tables.text(results))
    print(f"page: {out / 'report.html'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--recipes", help="only these, comma separated")
    parser.add_argument("--minutes", type=float, default=120.0, help="after which nothing further is trained")
    parser.add_argument("--nice", type=int, default=19, help="of the trainings")
    parser.add_argument("--steps", type=int, help="fewer than the recipe's, to try things out")
    parser.add_argument("--out", default=str(ROOT / "build" / "precursors"))
    parser.add_argument("--score", action="store_true", help="train nothing, score what is there")
    parser.add_argument("--keep", action="store_true", help="make these the results that docs/precursors.md shows")
    parser.add_argument("--short", action="store_true", help="one small pair: shows that it runs")
    options = parser.parse_args()
    if options.short:
        vars(options).update(SHORT)
        options.out += "-short"
    if (
        not 1 <= options.seeds <= comparison.SEEDS_APART
        or options.minutes < 0
        or (options.steps is not None and options.steps < 1)
    ):
        print("precursors: give 1 to 100 seeds, at least one step, and no negative time", file=sys.stderr)
        return 2
    try:
        run(options)
    except recording.RecordingError as error:
        print(f"precursors: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
