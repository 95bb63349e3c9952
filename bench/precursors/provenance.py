"""Hashes the code that results depend on, and stores the data of trainings. Results of several days or machines are
combined only if their hashes agree. A stored training (`one`) is a dictionary made by recording.reduced(). It keeps
the seed, the events of the detectors, counts of the record's lines by type ("lines"), and the hashes ("made").

Standard library only: `./dev docs` runs it without a virtual environment.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import pathlib
import re
import tokenize

import recipes

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "bench" / "precursors"
DEMO = ROOT / "integrations" / "torch" / "demo"
FOLDER = HERE / "trainings"  # one file of stored trainings for each recipe (kind of training, see recipes.py)
# Least number of weight snapshots per step that a stored training must have, as a share of the best training of its
# recipe. On a busy machine the agent loses snapshots, and the detectors of weights then have fewer values.
LEAST_LOOKS = 0.85
# The judges: prefixes of the files in shadow/ that compute the errors of sampled pieces of attention ("slices").
JUDGES = ("conservation", "judgement", "key_columns", "noise_floor", "reference", "rows_in_lanes")
# Options of `foreshock run` for the trainings: any free port; a sampled step in 4 and a snapshot of each weight in 8
# steps, at any cost.
MONITOR = ("--port", "0", "--every", "4", "--weights", "8", "--max-slowdown", "100%")


def digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def without_comments(source: str) -> str:
    """C++ source, approximately without comments and with white space collapsed, so that these do not change a hash.
    Of the preprocessor's lines only those of #include remain."""
    return re.sub(r"\s+", " ", re.sub(r"//.*|^\s*#(?!include).*", "", source, flags=re.MULTILINE)).strip()


def python_code(source: str) -> str:
    """Python source without comments and docstrings and with white space collapsed; equal in all Python versions."""
    lines = source.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    spans = [(token.start, token.end) for token in tokens if token.type == tokenize.COMMENT]
    before = tokenize.NEWLINE  # type of the last token that was neither a comment nor an empty line
    for token in tokens:
        if token.type in (tokenize.COMMENT, tokenize.NL):
            continue
        if token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            spans.append((token.start, token.end))  # a statement that is only a string
        before = token.type
    for (row, column), (last_row, last_column) in sorted(spans, reverse=True):  # the last first: positions stay valid
        source = source[: starts[row - 1] + column] + source[starts[last_row - 1] + last_column :]
    return re.sub(r"\s+", " ", source)


def of_detectors() -> str:
    """Hash of the code that turns a record into events."""
    files = sorted([*(ROOT / "detect").glob("*.h"), *(ROOT / "detect").glob("*.cpp"), ROOT / "agent" / "detection.cpp"])
    return digest([f"{file.name} {without_comments(file.read_text())}" for file in files])


def of_judges() -> str:
    """Hash of the code that computes the figures of an attention slice in a record."""
    files = sorted(path for name in JUDGES for path in (ROOT / "shadow").glob(f"{name}*.*"))
    return digest([f"{file.name} {without_comments(file.read_text())}" for file in files])


def of_training(what: recipes.Recipe) -> str:
    """Hash of the recipe (`what`), the options of `foreshock run` and the Python code of a training; not of a seed."""
    made = what.name, what.model, what.steps, what.begins, what.later, what.plant, what.dose, what.where, what.growth
    sources = HERE / "training.py", DEMO / "train.py", DEMO / "fault.py"
    return digest([repr((made, recipes.LAYERS, MONITOR)), *(python_code(each.read_text()) for each in sources)])


def stored() -> list[dict]:
    """All stored trainings, in the order of recipes and seeds."""
    lines = [line for each in recipes.RECIPES for line in kept(each.name)]
    return [json.loads(line) for line in lines]


def kept(recipe: str) -> list[str]:
    """The stored trainings of a recipe, each as a line of JSON."""
    path = FOLDER / f"{recipe}.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def looks(one: dict) -> float:
    """Weight snapshots per step. Each snapshot of a tensor is a line of type "tensor" in the record."""
    return one["lines"]["tensor"] / one["last_step"]


def keep(found: list[dict]) -> list[dict]:
    """Stores trainings, replacing those with the same recipe and seed. Returns the trainings that lost too many weight
    snapshots, which are not stored."""
    FOLDER.mkdir(exist_ok=True)
    refused: list[dict] = []
    for name in sorted({one["recipe"] for one in found}):
        new = [one for one in found if one["recipe"] == name]
        of = {one["seed"]: one for one in map(json.loads, kept(name))}  # {seed: training to store of this recipe}
        least = LEAST_LOOKS * max(looks(one) for one in (*new, *of.values()))
        refused += [one for one in new if looks(one) < least]
        of |= {one["seed"]: one for one in new if looks(one) >= least}
        lines = [json.dumps(of[seed], separators=(",", ":")) + "\n" for seed in sorted(of)]
        (FOLDER / f"{name}.jsonl").write_text("".join(lines))
    return refused


def is_made_alike(one: dict) -> bool:
    """Whether of_training() still has the hash that it had when the training ran. Ignores detectors and judges."""
    return one["made"]["training"] == of_training(recipes.recipe(one["recipe"]))


def is_outdated(one: dict) -> bool:
    """Whether detectors (is_stale()) or, if there are slices, judges differ from when `one` ran. Ignores the recipe."""
    return is_stale(one) or (one["lines"]["sample"] > 0 and one["made"].get("judges") != of_judges())


def is_stale(one: dict) -> bool:
    """Whether the events come from other detectors than those of this tree. Ignores the recipe and the judges."""
    return one["made"]["detectors"] != of_detectors()
