"""Scores all detectors over all trainings, with the shipped thresholds and with thresholds learned from other seeds.

`found` is a list of trainings, as recording.reduced() stores them; `one` is a training of such a list, a dictionary. A
recipe (recipes.py, `each`) describes a training and its fault. A threshold (`at`) is a text: "1.4" stands for 1.4 times
the shipped one. one["alarms"][detector][threshold] has the first steps of the alarms. A twin is the same training
without the fault. The onset is the first step of a loss event; a hit is a loss event with an alarm shortly before it. A
Tally counts the alarms and hits of one detector. `of` has the tallies or counts of a detector.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable

import alarms
import attention_errors
import provenance
import recipes
import scoring
from recording import GRID, GRID_OF_OTHERS

# A learned threshold may give at most this many false alarms per 10 000 steps, on the seeds used for learning.
MOST_FALSE_PER_10K = 1.0
OTHERS = tuple(alarms.of_others([], [], [], []))  # names of detection rules that others have published
NULL = "step index"  # the null detector: one alarm at a fixed step, which is its threshold (as text)
NULL_EVERY = 40  # steps between two thresholds that are tried for the null detector


def completed(found: list[dict]) -> list[dict]:
    """The trainings, each with the fields of missed() added."""
    by_key = {(one["recipe"], one["seed"]): one for one in found}
    return [one | missed(one, by_key.get((recipes.recipe(one["recipe"]).twin, one["seed"]))) for one in found]


def missed(one: dict, twin: dict | None) -> dict:
    """The field "missed": whether the losses of `one` show a failure in comparison with the twin, although the rules
    for loss events found no onset. If so, also "onsets" and "masked" (the steps not scored) with this failure."""
    failure = scoring.excess(one["losses"], twin["losses"]) if twin and not one["onsets"] else None
    if failure is None:
        return {"missed": False}
    onset, end = failure
    return {"missed": True, "onsets": [onset], "masked": [[onset, min(end, one["last_step"] + 1)]]}


def training_of(one: dict, threshold: dict[str, str]) -> scoring.Training:
    """The training for scoring, with the alarms at the given thresholds. `threshold`: thresholds by detector. Without
    an entry, a detector has the shipped threshold "1.0", and the null detector no alarm. `at` is a dictionary of alarms
    by threshold here."""
    begins = {name: at.get(threshold.get(name, "1.0"), []) for name, at in one["alarms"].items()}
    begins[NULL] = [int(threshold[NULL])] if NULL in threshold else []
    masked = [tuple(pair) for pair in one["masked"]]
    return scoring.Training(one["recipe"], one["seed"], one["last_step"], one["onsets"], masked, begins)


def is_fault(one: dict) -> bool:
    return recipes.recipe(one["recipe"]).arm == "fault"


def pairs(found: list[dict], threshold: dict[str, str]) -> list[tuple[scoring.Training, scoring.Training]]:
    """Each training with a fault, and its twin cut to the same length. Leaves out trainings whose twin is not in
    `found`, and trainings in which a detector of `threshold` has no values."""
    by_key = {(one["recipe"], one["seed"]): one for one in found}
    whole = []
    for one in filter(is_fault, found):
        twin = by_key.get((recipes.recipe(one["recipe"]).twin, one["seed"]))
        if twin and all(name in one["alarms"] or name == NULL for name in threshold):
            fault = training_of(one, threshold)
            whole.append((fault, training_of(twin, threshold).cut(fault.last_step)))
    return whole


def controls(found: list[dict], detector: str, threshold: str) -> list[scoring.Training]:
    """The trainings without a fault in which the detector has values."""
    without_fault = [one for one in found if not is_fault(one) and (detector in one["alarms"] or detector == NULL)]
    return [training_of(one, {detector: threshold}) for one in without_fault]


def tallies(found: list[dict], detector: str, threshold: str) -> dict[tuple[str, int], scoring.Tally]:
    """The tally of each pair of a training with a fault and its twin, by recipe and seed."""
    return {
        (fault.recipe, fault.seed): scoring.tally(fault, twin, detector)
        for fault, twin in pairs(found, {detector: threshold})
    }


def over_seeds(of: dict[tuple[str, int], scoring.Tally]) -> list[scoring.Tally]:
    """One tally per seed, pooled over all recipes, since recipes that share a twin are not independent."""
    return [scoring.pooled(t for key, t in of.items() if key[1] == seed) for seed in sorted({key[1] for key in of})]


def summaries(found: list[dict], detector: str, of: dict[tuple[str, int], scoring.Tally], threshold: str) -> dict:
    """The figures of a detector over all recipes, by recipe with a fault, and by recipe without a fault ("models")."""
    without_fault = controls(found, detector, threshold)
    by_recipe = {}
    for each in recipes.RECIPES:
        groups = [t for key, t in sorted(of.items()) if key[0] == each.name]
        if groups:
            own = [one for one in without_fault if one.recipe == each.twin]  # trainings of the twin
            by_recipe[each.name] = scoring.summary(groups, scoring.quiet(own, [detector]))
    whole = scoring.summary(over_seeds(of), scoring.quiet(without_fault, [detector]))
    return {"all": whole, "recipes": by_recipe, "models": by_control(without_fault, [detector])}


def by_control(without_fault: list[scoring.Training], detectors: Iterable[str]) -> dict[str, dict]:
    """False alarms in the trainings without a fault, by recipe. "per_10k": per 10 000 steps; "most": its 95 % bound."""
    names = list(detectors)
    found = {}
    for each in recipes.RECIPES:
        of = scoring.quiet([one for one in without_fault if one.recipe == each.name], names)
        if of.steps:
            figures = {"false": of.alarms, "steps": of.steps, "per_10k": of.per_10k(), "most": of.per_10k_most()}
            found[each.name] = figures
    return found


def is_for_learning(seed: int) -> bool:
    return seed % 2 == 0


def tried(detector: str) -> list[str]:
    """The thresholds that are tried, lowest first. For the null detector: the steps at which it gives its alarm."""
    if detector == NULL:
        longest = max(each.steps for each in recipes.RECIPES if each.arm == "fault")
        return [str(step) for step in range(scoring.FIRST_STEP, longest, NULL_EVERY)]
    return [str(at) for at in (GRID_OF_OTHERS if detector in OTHERS else GRID)]


def learned_threshold(found: list[dict], detector: str) -> str | None:
    """The lowest threshold with at most MOST_FALSE_PER_10K false alarms in trainings without a fault. For the null
    detector: the step with the largest lift. Lift: how much more often a loss event follows an alarm than it follows an
    arbitrary step. Uses only the seeds for learning. None: no threshold qualifies, or no training can be used."""
    learning = [one for one in found if is_for_learning(one["seed"])]
    if detector == NULL:
        whole = {at: scoring.pooled(tallies(learning, detector, at).values()).lift() for at in tried(detector)}
        lifts = {at: lift for at, lift in whole.items() if not math.isnan(lift)}
        return max(lifts, key=lifts.get) if lifts else None
    false_alarms = {at: scoring.quiet(controls(learning, detector, at), [detector]) for at in tried(detector)}
    return next((at for at, of in false_alarms.items() if of.steps and of.per_10k() <= MOST_FALSE_PER_10K), None)


def learned(found: list[dict], detector: str) -> dict:
    """The threshold learned from half of the seeds, and its results on the other half.

    The null detector learns one threshold for each recipe. This favours the null detector: recipes differ in length, so
    one step for all recipes would give worse results.
    """
    scored = [one for one in found if not is_for_learning(one["seed"])]
    if detector != NULL:
        at = learned_threshold(found, detector)
        of = tallies(scored, detector, at) if at is not None else {}
        # Without a learned threshold, summaries() gets no trainings, so the "1.0" has no effect.
        return {"threshold": at} | summaries(scored if at else [], detector, of, at or "1.0")
    of, steps = {}, []
    for each in recipes.RECIPES:
        own = [one for one in found if one["recipe"] in (each.name, each.twin)]
        at = learned_threshold(own, NULL) if each.twin else None
        if at is not None:
            steps.append(f"{each.name} {at}")
            of |= tallies([one for one in own if not is_for_learning(one["seed"])], NULL, at)
    # summaries() gets no trainings, so the threshold "0" has no effect.
    return {"threshold": ", ".join(steps) or None} | summaries([], NULL, of, "0")


def names_of(found: list[dict]) -> list[str]:
    """The names of all detectors: ours first, then the rules of others."""
    names = {name for one in found for name in one["alarms"]}
    return [*sorted(names - set(OTHERS)), *(name for name in OTHERS if name in names)]


def results(found: list[dict], steps: int | None) -> dict:
    """All results, as the bench stores them. `steps`: the option --steps; None: each recipe had its own length.
    "default": the detectors of foreshock with few false alarms that predict loss events or find planted errors."""
    shipped = {name: summaries(found, name, tallies(found, name, "1.0"), "1.0") for name in names_of(found)}
    errors = attention_errors.results(found)
    ours = {name: of for name, of in shipped.items() if name not in OTHERS}
    defaults = attention_errors.defaults(ours, errors)
    without_fault = [training_of(one, {}) for one in found if not is_fault(one)]
    return {
        "schema": 2,
        "protocol": {
            "horizon": scoring.HORIZON, "long_horizon": scoring.LONG_HORIZON, "aftermath": scoring.AFTERMATH,
            "first_step": scoring.FIRST_STEP, "steps": steps,
        },
        "detectors": provenance.of_detectors(),
        "made": about_making(found),
        "recipes": [about(each, found) for each in recipes.RECIPES],
        "shipped": shipped,
        "learned": {name: learned(found, name) for name in [*names_of(found), NULL]},
        "attention_errors": errors,
        "ours": list(ours),
        "default": defaults,
        "default_quiet": by_control(without_fault, defaults),
    }  # fmt: skip


def about_making(found: list[dict]) -> dict:
    """How the trainings were made.

    stale: number of trainings whose events come from other detectors than those of this tree. judges: number of
    trainings by hash of the code that judged their slices. live_events: number of events that the agent found during
    the trainings. replays: number of trainings in which `foreshock detect` found the same events in the record.
    """
    made = [one["made"] for one in found]
    judges = [one["made"].get("judges", "") for one in found if one["lines"]["sample"]]
    return {
        "trainings": len(found), "stale": sum(map(provenance.is_stale, found)),
        "judges": dict(collections.Counter(judges)),
        "torch": sorted({each["torch"] for each in made}), "foreshock": sorted({each["foreshock"] for each in made}),
        "live_events": sum(each["live_events"] for each in made), "replays": sum(each["replays"] for each in made),
    }  # fmt: skip


def about(what: recipes.Recipe, found: Iterable[dict]) -> dict:
    """A recipe, with the numbers of its trainings and of their loss events. steps_lost: steps that records lack."""
    of = [one for one in found if one["recipe"] == what.name]
    return {
        "name": what.name, "family": what.family, "model": what.model, "what": what.what, "steps": what.steps,
        "twin": what.twin, "seeds": sorted(one["seed"] for one in of),
        "with_events": sum(bool(one["onsets"]) for one in of), "events": sum(len(one["onsets"]) for one in of),
        "missed": sum(one["missed"] for one in of),
        "steps_lost": sum(one["last_step"] - one["steps_seen"] for one in of),
    }  # fmt: skip
