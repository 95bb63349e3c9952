"""Writes the results of comparison.results() as text: into the blocks of RESULTS.md and of docs/detectors.md, and as
the bench's output. A block lies between "<!-- NAME -->" and "<!-- end -->". `results` is the content of results.json.
"shipped" and "learned" in it: detectors scored with their own and with learned thresholds; "ours" lists those that are
foreshock's. `of` is the entry of one detector there; `found` has figures of the detector: over all recipes
(`of["all"]`), of one recipe with a fault (`of["recipes"][name]`), or of one recipe without a fault
(`of["models"][name]`). `–`: unknown. A recipe is a kind of
training; its twin is the same training without the fault. A hit is a loss event with an alarm shortly before it; lead:
the steps between. Lift: how much more often an event follows an alarm than an arbitrary step. Default detectors give
few false alarms, and predict loss events or find planted errors of attention. The others are experimental.

Standard library only: `./dev docs` runs it without a virtual environment.
"""

from __future__ import annotations

import json
import pathlib
import re
import textwrap

import attention_errors
import provenance

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = pathlib.Path(__file__).resolve().parent / "results.json"
REPORT = RESULTS.with_name("RESULTS.md")
PAGE = ROOT / "docs" / "detectors.md"
BLOCK = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.S)
# Columns. "95 %": interval of the share of hits. "twin": how often the twin had an alarm in the same steps before an
# event. "right": alarms that an event follows. "false": alarms in trainings without a fault (for one recipe: its twin).
HEAD = ("detector", "hits", "95 %", "twin", "lead", "alarms", "right", "lift", "false per 10 k steps")


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"


def between(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"[{number(low)}, {number(high)}]"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}".replace("%", " %")


def row_of(name: str, found: dict) -> list[str]:
    """The cells below HEAD. `found`: the figures of scoring.summary()."""
    lead = "–"
    if found["lead_median"] is not None:
        lead = f"{found['lead_median']:g} ({found['lead_p25']}–{found['lead_p75']}; p10 {found['lead_p10']})"
    shares = f"{percent(found['hit_low'])}–{percent(found['hit_high'])}" if found["hit_low"] is not None else "–"
    lift = number(found["lift"]) + (" " + between(found["lift_low"], found["lift_high"]) if found["alarms"] else "")
    false = (
        f"{number(found['false_per_10k'])} (≤ {number(found['false_per_10k_most'])})" if found["twin_steps"] else "–"
    )
    return [
        name, f"{found['hits']} of {found['events']}", shares, str(found["twin_hits"]), lead, str(found["alarms"]),
        str(found["right"]), lift, false,
    ]  # fmt: skip


def markdown(head: list[str] | tuple[str, ...], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def verdicts(results: dict) -> list[str]:
    """A line per recipe with a fault, with two lists. The first has the detectors that predict the recipe's loss events
    well enough for an alert (attention_errors.foretells(), by lift, lead and hits). The second has those detectors of
    the first list whose 95 % interval of lift begins at LEAST_LIFT (2) or above."""
    lines, seeds = [], {recipe["name"]: set(recipe["seeds"]) for recipe in results["recipes"]}
    for recipe in faults(results):
        pairs = len(set(recipe["seeds"]) & seeds[recipe["twin"]])
        begin = f"- **{recipe['name']}** ({pairs} {'pair' if pairs == 1 else 'pairs'}): "
        if pairs == 0 or recipe["with_events"] == 0:
            lines.append(begin + ("not trained." if pairs == 0 else "no loss event."))
            continue
        good, sure = [], []
        for name, of in results["shipped"].items():
            found = of["recipes"].get(recipe["name"])
            if found and attention_errors.foretells(found):
                good.append(f"`{name}` ({found['hits']} of {found['events']}, lead {found['lead_median']:g})")
                if found["lift_low"] is not None and found["lift_low"] >= attention_errors.LEAST_LIFT:
                    sure.append(f"`{name}`")
        text = "; ".join(good) if good else "none"
        lines.append(f"{begin}{text}. Lift ≥ 2 in its whole interval: {', '.join(sure) or 'none'}.")
    return lines


def faults(results: dict) -> list[dict]:  # recipes with a fault
    return [recipe for recipe in results["recipes"] if recipe["twin"]]


def quiet(results: dict) -> str:
    """The table of false alarms in trainings without a fault: "number: rate per 10 000 steps (≤ upper bound)"."""
    rows = []
    for name, of in [*results["shipped"].items(), ("all that are default", {"models": results["default_quiet"]})]:
        cells = [
            f"{found['false']}: {number(found['per_10k'])} (≤ {number(found['most'])})" if found else "–"
            for found in (of["models"].get(each["name"]) for each in controls(results))
        ]
        rows.append([f"`{name}`" if name in results["shipped"] else f"**{name}**", *cells])
    head = ["detector", *(f"`{each['name']}`, {steps_of(results, each)} steps" for each in controls(results))]
    return markdown(head, rows)


def controls(results: dict) -> list[dict]:  # recipes without a fault that were trained
    return [recipe for recipe in results["recipes"] if not recipe["twin"] and recipe["seeds"]]


def steps_of(results: dict, recipe: dict) -> int:
    """The number of scored steps of the trainings of `recipe`, from the detector that has values for most of them."""
    found_of = [found["models"].get(recipe["name"]) for found in results["shipped"].values()]
    return max((each["steps"] for each in found_of if each), default=0)


def errors(results: dict) -> str:
    """The table of recipes with and without an attention error, for the two detectors that watch for such errors.
    "missed": trainings whose losses show a failure that the rules for loss events did not find."""
    rows = []
    for each in results["attention_errors"]:
        drift, bias, trainings = each["output_error_drift"], each["bias"], each["trainings"]
        events = f"{each['with_event']} of {trainings}" + (f" ({each['missed']} missed)" if each["missed"] else "")
        rows.append([
            f"`{each['recipe']}`", events, "–" if each["event_after"] is None else f"{each['event_after']:g}",
            f"{drift['seen']} of {trainings}", f"{drift['right']}" if each["plant"] else "–",
            f"{drift['before']} of {each['with_event']}" if each["with_event"] else "–",
            "–" if drift["lead"] is None else f"{drift['lead']:g}",
            f"{bias['seen']} of {trainings}", f"{bias['right']}" if each["plant"] else "–",
        ])  # fmt: skip
    return markdown(ERRORS_HEAD, rows)


def made(results: dict, current: str) -> str:
    """A text on the trainings behind the figures, and whether they were scored by the detectors (`current`: their hash)
    and judges (code that computes attention errors) of this tree."""
    origin = results["made"]
    stale = origin["trainings"] if results["detectors"] != current else origin["stale"]
    text = (
        f"{origin['trainings']} trainings, torch {' and '.join(origin['torch'])}, "
        f"{' and '.join(origin['foreshock'])}. On {origin['replays']} of the {origin['trainings']} records "
        "`foreshock detect` reproduced every event that the agent had written during the training "
        f"({origin['live_events']} events). "
    )
    text += (
        f"**Stale: {stale} of them were scored with detectors of another version than this tree.**"
        if stale
        else "All were scored with the detectors of this tree."
    )
    otherwise = sum(count for judges, count in origin["judges"].items() if judges != provenance.of_judges())
    if otherwise:
        text += (
            f" In {otherwise} of them the attention errors were computed by an earlier version of shadow/: the rows of "
            "`deviation_forward`, `deviation_backward`, `bias` and `output_error_drift` are of that version."
        )
    return textwrap.fill(text, 120)


def filled(document: pathlib.Path, blocks: dict[str, str]) -> str:
    """The text of the document with each of its blocks filled."""
    return BLOCK.sub(lambda block: f"{block[1]}{blocks[block[2]]}\n{block[3]}", document.read_text())


def page(results: dict, current: str) -> str:
    """The text of docs/detectors.md. `current`: the hash of the detectors of this tree."""
    blocks = {
        "made": made(results, current),
        "standing": standing(results),
        "shipped": short_table(results),
        "families": families(results),
    }
    return filled(PAGE, blocks)


def families(results: dict) -> str:
    """The table of families of failures: in how many recipes each default detector predicts the loss events well enough
    for an alert, and how early."""
    rows = []
    for family in dict.fromkeys(recipe["family"] for recipe in faults(results)):
        names = [recipe["name"] for recipe in faults(results) if recipe["family"] == family]
        cells = []
        for name in results["default"]:
            found = [results["shipped"][name]["recipes"].get(recipe) for recipe in names]
            leads = [each["lead_median"] for each in found if each and attention_errors.foretells(each)]
            if leads:
                steps = f"{min(leads):g}" if len(leads) == 1 else f"{min(leads):g} to {max(leads):g}"
                cells.append(f"`{name}` in {len(leads)} of {len(names)} recipes, {steps} steps before")
        has_event = any(recipe["with_events"] for recipe in faults(results) if recipe["family"] == family)
        rows.append([family, "; ".join(cells) or ("none" if has_event else "no loss event")])
    return markdown(("family of failures", "default detectors with lift ≥ 2 and a median lead ≥ 5 steps"), rows)


def standing(results: dict) -> str:
    default = ", ".join(f"`{name}`" for name in results["default"]) or "none"
    experimental = ", ".join(f"`{name}`" for name in results["ours"] if name not in results["default"]) or "none"
    return f"**Default**: {default}.\n\n**Experimental**: {experimental}."


def short_table(results: dict) -> str:
    rows = []
    for name, of in results["shipped"].items():
        found = of["all"]
        lead = "–" if found["lead_median"] is None else f"{found['lead_median']:g} steps"
        lift, interval = number(found["lift"]), between(found["lift_low"], found["lift_high"])
        false = f"{number(found['false_per_10k'])} (at most {number(found['false_per_10k_most'])})"
        rows.append([f"`{name}`", f"{found['hits']} of {found['events']}", lead, f"{lift} {interval}", false])
    return markdown(SHORT_HEAD, rows)


def report(results: dict, current: str) -> str:
    """The text of RESULTS.md, with every table. `current`: as in made(). "shipped": with foreshock's own thresholds,
    "learned": with thresholds learned from half of the trainings."""
    what = [
        [
            f"`{r['name']}`", r["family"], r["model"], r["what"], f"`{r['twin']}`" if r["twin"] else "–",
            f"{r['steps']}", str(len(r["seeds"])), str(r["with_events"]), str(r["events"]), str(r["missed"]),
        ]
        for r in results["recipes"]
    ]  # fmt: skip
    shipped = [row_of(f"`{name}`", of["all"]) for name, of in results["shipped"].items()]
    # The threshold is inserted after the first cell of row_of(), the name.
    learned = [
        [*row_of(f"`{name}`", of["all"])[:1], of["threshold"] or "none", *row_of("", of["all"])[1:]]
        for name, of in results["learned"].items()
    ]
    blocks = {
        "recipes": markdown(RECIPE_HEAD, what),
        "made": made(results, current),
        "standing": standing(results),
        "families": families(results) + "\n\n" + "\n".join(verdicts(results)),
        "quiet": quiet(results),
        "errors": errors(results),
        "shipped": markdown(HEAD, shipped),
        "by_recipe": "\n".join(part for part in (of_recipe(results, each) for each in faults(results)) if part),
        "learned": markdown((HEAD[0], "threshold", *HEAD[1:]), learned),
    }
    return filled(REPORT, blocks)


def of_recipe(results: dict, recipe: dict) -> str:  # the section of RESULTS.md about one recipe; "": no alarms
    name = recipe["name"]
    rows = [
        row_of(f"`{detector}`", of["recipes"][name])
        for detector, of in results["shipped"].items()
        if name in of["recipes"] and (of["recipes"][name]["alarms"] or of["recipes"][name]["twin_hits"])
    ]
    return f"### {name}\n\nDetectors that raised an alarm.\n\n{markdown(HEAD, rows)}\n" if rows else ""


def text(results: dict) -> str:
    """The main tables for a terminal."""
    rows = [HEAD, *(row_of(name, of["all"]) for name, of in results["shipped"].items())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*lines, "", *verdicts(results), "", families(results), "", quiet(results), "", errors(results)])


SHORT_HEAD = (
    "detector",
    "loss events with a warning before",
    "median lead",
    "lift [95 %]",
    "false alarms per 10 000 steps",
)
RECIPE_HEAD = (
    "recipe",
    "family",
    "model",
    "what is wrong",
    "twin",
    "steps",
    "trained",
    "with a loss event",
    "loss events",
    "missed",
)
ERRORS_HEAD = (
    "recipe",
    "with a loss event",
    "steps to it",
    "`output_error_drift` warned",
    "for the right layer",
    "before the loss event",
    "steps before it",
    "`bias` warned",
    "for the right layer",
)


def main() -> None:
    results, current = json.loads(RESULTS.read_text()), provenance.of_detectors()
    PAGE.write_text(page(results, current))
    REPORT.write_text(report(results, current))


if __name__ == "__main__":
    main()
