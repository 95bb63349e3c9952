"""What a result depends on, as hashes: a result of another day or machine counts only beside others of the same.

Standard library only: `./dev docs` runs it without a virtual environment.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re

import recipes

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "bench" / "precursors"
DEMO = ROOT / "integrations" / "torch" / "demo"
FOLDER = HERE / "trainings"  # what is kept of each training, a file for each recipe
# A training keeps at least this share of the looks at weights that another one of its recipe had: on a busy machine
# the agent loses some, and the detectors of weights then see fewer values.
LEAST_LOOKS = 0.85
JUDGES = ("bias", "deviation", "plain", "reference")  # of shadow/
# How the trainings are watched.
MONITOR = ("--port", "0", "--every", "4", "--weights", "8", "--max-slowdown", "100%")


def digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def without_comments(source: str) -> str:
    """C++ or Python, near enough for a hash: neither a comment nor a break of lines makes another detector."""
    return re.sub(r"\s+", " ", re.sub(r"//.*|^\s*#(?!include).*", "", source, flags=re.MULTILINE))


def of_detectors() -> str:
    """Of everything between a record and its events."""
    files = sorted([*(ROOT / "detect").glob("*.h"), *(ROOT / "detect").glob("*.cpp"), ROOT / "agent" / "detection.cpp"])
    return digest([f"{file.name} {without_comments(file.read_text())}" for file in files])


def of_judges() -> str:
    """Of everything that makes the figures of a slice of attention in a record."""
    files = sorted(path for name in JUDGES for path in (ROOT / "shadow").glob(f"{name}*.*"))
    return digest([f"{file.name} {without_comments(file.read_text())}" for file in files])


def of_training(what: recipes.Recipe) -> str:
    """Of everything that makes a record."""
    made = what.name, what.model, what.steps, what.begins, what.later, what.plant, what.dose, what.where, what.growth
    sources = HERE / "training.py", DEMO / "train.py", DEMO / "fault.py"
    return digest([repr((made, recipes.LAYERS, MONITOR)), *(without_comments(each.read_text()) for each in sources)])


def stored() -> list[dict]:
    """All trainings that are kept, in the order of the recipes and seeds."""
    lines = [line for each in recipes.RECIPES for line in kept(each.name)]
    return [json.loads(line) for line in lines]


def kept(recipe: str) -> list[str]:
    path = FOLDER / f"{recipe}.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def looks(one: dict) -> float:
    """At weights, per step."""
    return one["lines"]["tensor"] / one["last_step"]


def keep(found: list[dict]) -> list[dict]:
    """Adds trainings to those that are kept, in place of the same ones of before. Returns what is not added: trainings
    that lost too many looks at weights."""
    FOLDER.mkdir(exist_ok=True)
    refused: list[dict] = []
    for name in sorted({one["recipe"] for one in found}):
        new = [one for one in found if one["recipe"] == name]
        of = {one["seed"]: one for one in map(json.loads, kept(name))}
        least = LEAST_LOOKS * max(looks(one) for one in (*new, *of.values()))
        refused += [one for one in new if looks(one) < least]
        of |= {one["seed"]: one for one in new if looks(one) >= least}
        lines = [json.dumps(of[seed], separators=(",", ":")) + "\n" for seed in sorted(of)]
        (FOLDER / f"{name}.jsonl").write_text("".join(lines))
    return refused


def is_made_alike(one: dict) -> bool:
    """By the training that the recipe now is."""
    return one["made"]["training"] == of_training(recipes.recipe(one["recipe"]))


def is_outdated(one: dict) -> bool:
    """To be made again: stale, or with other figures of its slices of attention than those of this tree."""
    return is_stale(one) or (one["lines"]["sample"] > 0 and one["made"].get("judges") != of_judges())


def is_stale(one: dict) -> bool:
    """Judged by other detectors than those of this tree."""
    return one["made"]["detectors"] != of_detectors()
