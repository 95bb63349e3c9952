"""Evaluates the detectors on trainings with an attention error in one layer: whether they warn before the loss event
and for the right layer, and whether they warn if the error is harmless. Also selects the detectors that are on by
default. A "training" here is its stored data: `one` is such a dictionary, `found` the list of all. In it, `onsets` are
the steps at which loss events begin, `places` the alarms of each detector as (step, layer label), `layers` all labels.
`missed`: only a comparison with the twin showed the failure. In a recipe, `plant` is what is done to attention, `dose`
its size in ulp, `twin` the recipe without the fault. A recipe with `plant` but no `twin` has no fault: it rounds the
output of exact attention.
"""

from __future__ import annotations

import statistics

import recipes
import scoring

WATCHED = ("output_error_drift", "bias")  # the detectors of attention errors
# Limits for a default detector: its lift (how many times more often a loss event follows an alarm than it follows an
# arbitrary step), its median lead in steps, and its false alarms per 10 000 steps.
LEAST_LIFT, LEAST_LEAD, MOST_FALSE = 2.0, 5, 1.0
LEAST_SHARE = 7 / 8  # in this share of a recipe's trainings or more, a detector must name the layer of the error


def layer_number(places: list[str], place: str) -> int:
    """The index of the layer with label `place`. Layer labels sort in the order of the layers."""
    return sorted(places).index(place)


def seen(one: dict, detector: str) -> dict | None:
    """The first alarm of a detector in a training: after the error begins (without an error: from the first scored step
    on), and before the first loss event, if there is one. None: no alarm. `after`: steps from the begin of the error to
    the alarm. `lead`: steps from the alarm to the event; None: no event. `right`: whether the alarm names the layer of
    the error; None: the error is not in a single layer, or does not exist."""
    what, onset = recipes.recipe(one["recipe"]), min(one["onsets"], default=None)
    begin = what.begin(one["seed"]) if what.plant and what.twin else scoring.FIRST_STEP
    end = one["last_step"] + 1 if onset is None else onset
    first = next(((step, place) for step, place in one["places"].get(detector, []) if begin <= step < end), None)
    if first is None:
        return None
    step, place = first
    guilty = what.layer(one["seed"])
    right = None if guilty is None else layer_number(one["layers"], place) == guilty
    return {"after": step - begin, "lead": None if onset is None else onset - step, "right": right}


def of_recipe(what: recipes.Recipe, found: list[dict]) -> dict:
    """The row of a recipe: its trainings and loss events, and for each detector of WATCHED in how many trainings it had
    an alarm ("seen"), in how many of those a loss event followed ("before"), in how many its first alarm named the
    layer of the error ("right"), and medians of "lead" and "after" of seen(). "plant" is "" without a planted error."""
    of = [one for one in found if one["recipe"] == what.name]
    row: dict = {
        "recipe": what.name, "plant": what.plant if what.twin else "", "dose": what.dose, "trainings": len(of),
        "with_event": sum(bool(one["onsets"]) for one in of), "missed": sum(one["missed"] for one in of),
        "event_after": median([min(one["onsets"]) - what.begin(one["seed"]) for one in of if one["onsets"]]),
    }  # fmt: skip
    for name in WATCHED:
        told = [each for each in (seen(one, name) for one in of) if each]
        before = [each for each in (seen(one, name) for one in of if one["onsets"]) if each]
        row[name] = {
            "seen": len(told), "before": len(before), "right": sum(each["right"] is True for each in told),
            "lead": median([each["lead"] for each in before]), "after": median([each["after"] for each in told]),
        }  # fmt: skip
    return row


def median(values: list[int]) -> float | None:
    return statistics.median(values) if values else None


def results(found: list[dict]) -> list[dict]:
    """A row (of_recipe()) for every trained recipe whose model has attention; those with a planted error come first."""
    of_attention = [each for each in recipes.RECIPES if each.model != recipes.NET]  # NET has no attention
    rows = [of_recipe(each, found) for each in of_attention]
    return sorted((row for row in rows if row["trainings"]), key=lambda row: (row["plant"] == "", row["plant"]))


def foretells(of: dict) -> bool:
    """Whether a detector predicts the loss events of one recipe well enough for an alert. `of`: its figures for the
    recipe. The window of an event is a fixed number of steps before it. The detector had an alarm in the windows of
    `hits` of the `events`. In the twin, it had an alarm in `twin_hits` of these windows."""
    return (
        of["lead_median"] is not None
        and of["lift"] is not None
        and of["lift"] >= LEAST_LIFT
        and of["lead_median"] >= LEAST_LEAD
        and 2 * of["hits"] > of["events"]  # more than half of the events
        and of["twin_hits"] < of["hits"]
    )


def defaults(shipped: dict[str, dict], errors: list[dict]) -> list[str]:
    """The detectors that are quiet enough in every model and either predict the loss events of a recipe or name the
    layer of a planted error. `shipped`: figures of each detector at its default threshold, by model (false alarms
    `per_10k` steps) and by recipe; `errors`: the rows of results()."""
    names = []
    for name, of in shipped.items():
        quiet = all(each["per_10k"] <= MOST_FALSE for each in of["models"].values())
        planted = [row for row in errors if row["plant"]]
        names_it = name in WATCHED and any(row[name]["right"] >= LEAST_SHARE * row["trainings"] for row in planted)
        if quiet and (names_it or any(foretells(each) for each in of["recipes"].values())):
            names.append(name)
    return names
