"""All detectors over all trainings: with the thresholds that ship, and with thresholds learned from other seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable

import alarms
import recipes
import scoring
from recording import NULL

LEAST_FALSE = 1.0  # false alarms per 10 000 steps that a learned threshold may have on the seeds it is learned from
# Each recipe has seeds of its own: twins of the same seed and model would be one training counted twice.
SEEDS_APART = 100
OTHERS = tuple(alarms.of_others([], [], [], []))  # names of the rules of others


def first_seed(recipe: int) -> int:
    """Of the recipe of this number."""
    return recipes.FIRST_SEED + SEEDS_APART * recipe


def losses_of(one: dict) -> dict[int, float]:
    return {step: math.nan if loss is None else loss for step, loss in zip(*one["losses"], strict=True)}


def completed(found: list[dict]) -> list[dict]:
    """The same, with the onsets of failures that the rule of loss events has missed and the twin shows."""
    twins = {(one["recipe"], one["seed"]): one for one in found if one["arm"] == "control"}
    whole = []
    for one in found:
        twin = twins.get((one["recipe"], one["seed"])) if one["arm"] == "fault" and not one["onsets"] else None
        onset = scoring.excess(losses_of(one), losses_of(twin)) if twin else None
        onsets, masked = scoring.masks(losses_of(one), [onset] if onset else [], one["last_step"])
        whole.append(one | {"onsets": onsets, "masked": masked, "missed": True} if onset else one | {"missed": False})
    return whole


def training_of(one: dict, threshold: dict[str, str]) -> scoring.Training:
    """`threshold`: of each detector, the key among those tried; where none is given, what ships."""
    found = {name: at.get(threshold.get(name, "1.0"), []) for name, at in one["alarms"].items()}
    masked = [tuple(pair) for pair in one["masked"]]
    return scoring.Training(one["recipe"], one["arm"], one["seed"], one["last_step"], one["onsets"], masked, found)


def pairs(found: list[dict], threshold: dict[str, str]) -> list[tuple[scoring.Training, scoring.Training | None]]:
    """Each training with its fault, and its twin if that is there too."""
    by_key = {(one["recipe"], one["seed"], one["arm"]): training_of(one, threshold) for one in found}
    return [(one, by_key.get((*key[:2], "control"))) for key, one in by_key.items() if key[2] == "fault"]


def tallies(found: list[dict], detector: str, threshold: str) -> dict[tuple[str, int], scoring.Tally]:
    """By recipe and seed. Only complete pairs count, and those in which the detector had something to look at."""
    return {
        (fault.recipe, fault.seed): scoring.tally(fault, twin, detector)
        for fault, twin in pairs(found, {detector: threshold})
        if twin is not None and detector in fault.alarms
    }


def by_recipe(of: dict[tuple[str, int], scoring.Tally]) -> dict[str, dict]:
    names = [each.name for each in recipes.RECIPES if any(key[0] == each.name for key in of)]
    return {name: scoring.summary([t for key, t in sorted(of.items()) if key[0] == name]) for name in names}


def over_seeds(of: dict[tuple[str, int], scoring.Tally]) -> list[scoring.Tally]:
    """One group for the first seed of all recipes, one for the second, and so on."""
    numbers = sorted({seed % SEEDS_APART for _, seed in of})
    return [scoring.pooled(t for key, t in of.items() if key[1] % SEEDS_APART == number) for number in numbers]


def is_for_learning(seed: int) -> bool:
    return seed % 2 == 0


def learned_threshold(found: list[dict], detector: str) -> str | None:
    """The lowest that was quiet enough in the twins; of the null, which has none that is quiet, the one of most lift.
    From the seeds for learning alone; None: nothing there to learn from, or none was quiet enough."""
    learning = [one for one in found if is_for_learning(one["seed"])]
    tried = list(next(one["alarms"][detector] for one in found if detector in one["alarms"]))
    whole = {at: scoring.pooled(tallies(learning, detector, at).values()) for at in tried}
    if detector == NULL:
        lifts = {at: t.lift() for at, t in whole.items() if not math.isnan(t.lift())}
        return max(lifts, key=lifts.get) if lifts else None
    quiet = [at for at, t in whole.items() if t.twin_steps and t.false * 1e4 <= LEAST_FALSE * t.twin_steps]
    return min(quiet, key=float) if quiet else None


def names_of(found: list[dict]) -> list[str]:
    """Ours first, then others', then the null."""
    names = {name for one in found for name in one["alarms"]}
    ours = sorted(names - set(OTHERS) - {NULL})
    return [*ours, *(name for name in OTHERS if name in names), NULL]


def learned_tallies(found: list[dict], detector: str) -> tuple[str | None, dict[tuple[str, int], scoring.Tally]]:
    """The learned threshold, and what it gave on the other seeds. The null has one for each recipe: it is to be as good
    as it can, and recipes are of different lengths."""
    scored = [one for one in found if not is_for_learning(one["seed"])]
    if detector != NULL:
        at = learned_threshold(found, detector)
        return at, tallies(scored, detector, at) if at is not None else {}
    of, steps = {}, []
    for name in sorted({one["recipe"] for one in found}):
        at = learned_threshold([one for one in found if one["recipe"] == name], NULL)
        if at is not None:
            steps.append(f"{name} {at}")
            of |= tallies([one for one in scored if one["recipe"] == name], NULL, at)
    return ", ".join(steps) or None, of


def results(found: list[dict], steps: int | None) -> dict:
    shipped, learned = {}, {}
    for name in names_of(found):
        if name != NULL:
            of = tallies(found, name, "1.0")
            shipped[name] = {"all": scoring.summary(over_seeds(of)), "recipes": by_recipe(of)}
        at, of = learned_tallies(found, name)
        learned[name] = {"threshold": at, "all": scoring.summary(over_seeds(of)), "recipes": by_recipe(of)}
    return {
        "schema": 1,
        "protocol": {
            "horizon": scoring.HORIZON, "aftermath": scoring.AFTERMATH, "first_step": scoring.FIRST_STEP,
            "steps": steps,
        },
        "recipes": [about(each, found) for each in recipes.RECIPES],
        "shipped": shipped,
        "learned": learned,
    }  # fmt: skip


def about(what: recipes.Recipe, found: Iterable[dict]) -> dict:
    """What happened in the trainings of a recipe."""
    arms = {arm: [one for one in found if one["recipe"] == what.name and one["arm"] == arm] for arm in recipes.ARMS}
    return {
        "name": what.name, "family": what.family, "fault": what.fault, "control": what.control, "steps": what.steps,
        "seeds": {arm: sorted(one["seed"] for one in of) for arm, of in arms.items()},
        "with_events": {arm: sum(bool(one["onsets"]) for one in of) for arm, of in arms.items()},
        "events": {arm: sum(len(one["onsets"]) for one in of) for arm, of in arms.items()},
        "missed": sum(one["missed"] for one in arms["fault"]),
        "steps_lost": {arm: sum(one["last_step"] - one["steps_seen"] for one in of) for arm, of in arms.items()},
    }  # fmt: skip


def curves(found: list[dict]) -> list[dict]:
    """Of the first seed of each recipe, what the page draws: losses, onsets, first alarms."""
    first = min((one["seed"] % SEEDS_APART for one in found), default=0)
    return [
        {key: one[key] for key in ("recipe", "arm", "seed", "onsets")}
        | {"curve": curve(losses_of(one))}
        | {"alarms": {name: at["1.0"][:50] for name, at in one["alarms"].items() if at.get("1.0")}}
        for one in found
        if one["seed"] % SEEDS_APART == first
    ]


def curve(losses: dict[int, float], points: int = 300) -> list[list[float | None]]:
    """[step, largest loss of a bin]; None: not finite."""
    steps = sorted(losses)
    width = max(1, len(steps) // points)
    bins = [steps[i : i + width] for i in range(0, len(steps), width)]
    largest = [(b[0], [losses[s] for s in b]) for b in bins]
    return [[s, round(max(of), 6) if all(math.isfinite(x) for x in of) else None] for s, of in largest]
