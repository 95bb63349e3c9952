"""Measures hits, lead times and false alarms of each detector, on trainings with a planted fault and on their twins.

A detector watches values of a training for signs of failure. A twin is the same training without the fault. A loss
event is a spike, divergence or slow rise. A hit is a warning that begins shortly before a loss event. The lead time is
the number of steps from the warning to the event.

    python bench/precursors.py [--seeds 8] [--recipes NAME,...] [--minutes 120] [--jobs 2]
                               [--steps N] [--out OUT] [--keep] [--tuning] [--score] [--busy] [--short]

Each recipe (bench/precursors/recipes.py) is trained under `foreshock run --record`, JOBS trainings at a time, with idle
priority. Each record is made once and stored in OUT/records. `foreshock detect` replays the records, and
bench/precursors/scoring.py counts hits and false alarms in its output. The results are written to
OUT/results.json. OUT is build/precursors unless --out names another directory.

With --keep, the data of each training that scoring needs is stored in bench/precursors/trainings. The results are then
computed from the trainings stored there, from any day and machine, except those whose recipe or training code has
changed since. They are also written to bench/precursors/results.json, from which `./dev docs` writes docs/detectors.md
and bench/precursors/RESULTS.md. A stored training is made again only if the recipe, the training code, the detectors or
the code that checks attention has changed. A training that lost too many weight snapshots, as on a busy machine, is not
stored.

After --minutes no further training starts, and unfinished ones are discarded. The next call makes the missing ones.
--tuning trains with other seeds, for choosing thresholds. Their results are written to OUT-tuning; their data is never
stored in bench/precursors/trainings.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import math
import pathlib
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PRECURSORS = ROOT / "bench" / "precursors"
sys.path.insert(0, str(PRECURSORS))

import comparison  # noqa: E402
import provenance  # noqa: E402
import recipes  # noqa: E402
import recording  # noqa: E402
import tables  # noqa: E402

SHORT = {"recipes": "stable-text,corrupt-batches", "seeds": 1, "steps": 330, "idle": False}  # options that --short sets
MOST_SEEDS = 100  # limit of --seeds; tuning seeds then stay below recipes.FIRST_SEED
Wanted = tuple[recipes.Recipe, int]  # recipe and seed of a training


def wanted_trainings(options: argparse.Namespace) -> list[Wanted]:
    """Pairs of recipe and seed, ordered by seed, so that after --minutes all recipes have about as many trainings."""
    names = options.recipes.split(",") if options.recipes else [each.name for each in recipes.RECIPES]
    unknown = [name for name in names if name not in {each.name for each in recipes.RECIPES}]
    if unknown:
        known = " ".join(each.name for each in recipes.RECIPES)
        raise recording.RecordingError(f"no recipe '{unknown[0]}'; there are: {known}")
    first = recipes.FIRST_TUNING_SEED if options.tuning else recipes.FIRST_SEED
    return [(recipes.recipe(name), first + n) for n in range(options.seeds) for name in names]


def no_nan(value: Any) -> Any:
    """A copy of `value`, JSON data, with None in place of numbers that are not finite, which JSON cannot represent."""
    if isinstance(value, dict):
        return {key: no_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [no_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def scoring_data(recipe: recipes.Recipe, seed: int, path: pathlib.Path) -> dict:
    """Extracts what scoring needs from the record at `path`. Caches it in a file that is valid for one version of
    foreshock and of the code that extracts and scores."""
    sources = b"".join((PRECURSORS / name).read_bytes() for name in ("recording.py", "alarms.py", "scoring.py"))
    key = hashlib.sha256(sources + recording.FORESHOCK.read_bytes()).hexdigest()[:16]
    file = path.with_suffix(f".{key}.json")
    if not file.exists():
        for old in path.parent.glob(f"{path.stem}.*.json"):
            if old != recording.made_of(path):  # the record's provenance, which is not a cache
                old.unlink()
        made = json.loads(recording.made_of(path).read_text())
        file.write_text(json.dumps(no_nan(recording.reduced(path, recipe, seed, made))))
    return json.loads(file.read_text())


class Trainer:
    """Provides trainings: from a record in `out`, else from those stored in the repository, else by training."""

    def __init__(self, options: argparse.Namespace, out: pathlib.Path, deadline: float) -> None:
        self.options, self.out, self.deadline = options, out, deadline
        # Stored trainings have the full length and no tuning seeds. Those of other training code are left out.
        stored = [] if options.steps or options.tuning else provenance.stored()
        alike = filter(provenance.is_made_alike, stored)
        self.stored = {(training["recipe"], training["seed"]): training for training in alike}

    def path(self, recipe: recipes.Recipe, seed: int) -> pathlib.Path:
        # The name contains the hash of the recipe, so that a record of an older version of it is not used.
        return self.out / "records" / f"{recipe.name}-{seed}-{provenance.of_training(recipe)}.jsonl"

    def get(self, wanted: Wanted) -> dict | None:
        """Returns the data of a training: from its record, else from the stored training if its detectors and judging
        code are those of this tree, else by training. If there is no time to train, or with --score, returns a stored
        training of other detectors or judging code, or None without one."""
        recipe, seed = wanted
        path, stored = self.path(recipe, seed), self.stored.get((recipe.name, seed))
        if not path.exists() and (stored is None or provenance.is_outdated(stored)) and not self.options.score:
            self.train(recipe, seed, path)
        return scoring_data(recipe, seed, path) if path.exists() else stored

    def train(self, recipe: recipes.Recipe, seed: int, path: pathlib.Path) -> None:
        begin = time.monotonic()
        steps = min(recipe.steps, self.options.steps or recipe.steps)
        seconds_left = self.deadline - begin
        if seconds_left > 0 and recording.record(recipe, seed, steps, path, seconds_left, self.options.idle):
            took = f"{time.monotonic() - begin:.0f} s"
            print(f"{time.strftime('%H:%M')}  {recipe.name}, seed {seed}: {took}", file=sys.stderr, flush=True)


def check_steps(out: pathlib.Path, steps: int | None) -> None:
    """Raises an error if `out` holds trainings made with another --steps; else stores `steps` for the next call."""
    file, text = out / "steps.json", json.dumps(steps)
    if file.exists() and file.read_text() != text:
        raise recording.RecordingError(f"{out} holds trainings of another length; give another --out")
    file.write_text(text)


def trainings(options: argparse.Namespace, out: pathlib.Path, deadline: float) -> list[dict]:
    wanted = wanted_trainings(options)
    (out / "records").mkdir(parents=True, exist_ok=True)
    check_steps(out, options.steps)
    trainer = Trainer(options, out, deadline)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        found = [training for training in pool.map(trainer.get, wanted) if training]
    if not found:
        raise recording.RecordingError(f"no training in {out}: nothing to score")
    return found


def run(options: argparse.Namespace) -> None:
    begin = time.monotonic()
    out = pathlib.Path(options.out)
    found = trainings(options, out, begin + 60 * options.minutes)
    if options.keep:
        refused = provenance.keep(found)  # stores `found`; returns those that lost too many weight snapshots
        for training in refused:
            # The next call makes the training again, since it finds no record.
            for record in (out / "records").glob(f"{training['recipe']}-{training['seed']}-*"):
                record.unlink()
            which = f"{training['recipe']}, seed {training['seed']}"
            print(
                f"precursors: {which}: too many snapshots of weights were lost; run it again while nothing else runs",
                file=sys.stderr,
            )
        # Also the trainings that earlier calls have stored.
        found = [training for training in provenance.stored() if provenance.is_made_alike(training)]
    # Marks trainings that failed without a loss event: their loss lies above that of the twin.
    found = comparison.completed(found)
    results: dict[str, Any] = no_nan(comparison.results(found, options.steps))
    (out / "results.json").write_text(json.dumps(results, indent=1))
    if options.keep:
        tables.RESULTS.write_text(json.dumps(results, separators=(",", ":")) + "\n")
    print(tables.text(results))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--recipes", help="only these, comma separated")
    parser.add_argument("--minutes", type=float, default=120.0, help="after which nothing further is trained")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time, of one thread each")
    parser.add_argument("--busy", dest="idle", action="store_false", help="train at the usual priority")
    parser.add_argument("--tuning", action="store_true", help="seeds for choosing thresholds; never scored")
    parser.add_argument("--steps", type=int, help="fewer than the recipe's, to try things out")
    parser.add_argument("--out", default=str(ROOT / "build" / "precursors"))
    parser.add_argument("--score", action="store_true", help="train nothing, score what is there")
    parser.add_argument("--keep", action="store_true", help="add them to those that bench/precursors/RESULTS.md shows")
    parser.add_argument("--short", action="store_true", help="one small pair: shows that it runs")
    options = parser.parse_args()
    if options.short:
        vars(options).update(SHORT)
        options.out += "-short"
    if options.keep and (options.tuning or options.steps):
        print("precursors: --keep is for whole trainings that were not used to choose thresholds", file=sys.stderr)
        return 2
    # --steps 0 is accepted and means the same as no --steps.
    if not 1 <= options.seeds <= MOST_SEEDS or options.minutes < 0 or options.jobs < 1 or (options.steps or 1) < 1:
        print("precursors: give 1 to 100 seeds, at least one job and step, and no negative time", file=sys.stderr)
        return 2
    if options.tuning:
        options.out += "-tuning"
    try:
        run(options)
    except recording.RecordingError as error:
        print(f"precursors: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
