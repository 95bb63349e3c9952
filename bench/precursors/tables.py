"""The results in words: docs/precursors.md, and what the bench prints. `tables.py` writes the page.

Standard library only: `./dev docs` runs it without a virtual environment.
"""

from __future__ import annotations

import json
import pathlib
import textwrap

import attention_errors
import provenance

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = pathlib.Path(__file__).resolve().parent / "results.json"
PAGE = ROOT / "docs" / "precursors.md"
HEAD = (
    "detector",
    "hits",
    "95 %",
    "twin",
    "lead",
    "alarms",
    "right",
    "lift",
    "false per 10 k steps",
)
NONE_SEEN = 3.0  # one-sided 95 % Poisson bound of what was never seen: -ln 0.05


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"


def between(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"[{number(low)}, {number(high)}]"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}".replace("%", " %")


def row_of(name: str, found: dict) -> list[str]:
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
    """For each recipe: which detectors would be worth an alert there (lift, lead, more than half of the events), and
    whether that is sure."""
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


def faults(results: dict) -> list[dict]:
    return [recipe for recipe in results["recipes"] if recipe["twin"]]


def quiet(results: dict) -> str:
    """The trainings without a fault: how often each detector, and all that are default, cried wolf."""
    rows = []
    for name, of in [*results["shipped"].items(), ("all that are default", {"models": results["default_quiet"]})]:
        cells = [
            f"{found['false']}: {number(found['per_10k'])} (≤ {number(found['most'])})" if found else "–"
            for found in (of["models"].get(each["name"]) for each in controls(results))
        ]
        rows.append([f"`{name}`" if name in results["shipped"] else f"**{name}**", *cells])
    head = ["detector", *(f"`{each['name']}`, {steps_of(results, each)} steps" for each in controls(results))]
    return markdown(head, rows)


def controls(results: dict) -> list[dict]:
    return [recipe for recipe in results["recipes"] if not recipe["twin"] and recipe["seeds"]]


def steps_of(results: dict, recipe: dict) -> int:
    """Scored ones; of any detector that had all of them to look at."""
    of = [found["models"].get(recipe["name"]) for found in results["shipped"].values()]
    return max((each["steps"] for each in of if each), default=0)


def errors(results: dict) -> str:
    """Attention that errs, and attention that does not."""
    rows = []
    for each in results["attention_errors"]:
        drift, bias, of = each["output_error_drift"], each["bias"], each["trainings"]
        events = f"{each['with_event']} of {of}" + (f" ({each['missed']} missed)" if each["missed"] else "")
        rows.append([
            f"`{each['recipe']}`", events, "–" if each["event_after"] is None else f"{each['event_after']:g}",
            f"{drift['seen']} of {of}", f"{drift['right']}" if each["plant"] else "–",
            f"{drift['before']} of {each['with_event']}" if each["with_event"] else "–",
            "–" if drift["lead"] is None else f"{drift['lead']:g}",
            f"{bias['seen']} of {of}", f"{bias['right']}" if each["plant"] else "–",
        ])  # fmt: skip
    return markdown(ERRORS_HEAD, rows)


def families(results: dict) -> str:
    """For each family of failures, whether a default detector foretells it."""
    rows = []
    for family in dict.fromkeys(recipe["family"] for recipe in faults(results)):
        of = [recipe for recipe in faults(results) if recipe["family"] == family]
        good = []
        for recipe in of:
            for name in results["default"]:
                found = results["shipped"][name]["recipes"].get(recipe["name"])
                if found and attention_errors.foretells(found):
                    lift = number(found["lift"]) + " " + between(found["lift_low"], found["lift_high"])
                    good.append(f"`{name}` in `{recipe['name']}` (lift {lift}, lead {found['lead_median']:g})")
        with_event = sum(recipe["with_events"] for recipe in of)
        rows.append(
            [family, "; ".join(good) if good else "none" if with_event else "no loss event: nothing to foretell"]
        )
    return markdown(("family", "default detectors of lift ≥ 2 and a median lead ≥ 5"), rows)


def made(results: dict, current: str) -> str:
    """Of what the figures are, and whether they are of these detectors."""
    of = results["made"]
    stale = of["trainings"] if results["detectors"] != current else of["stale"]
    text = (
        f"{of['trainings']} trainings, torch {' and '.join(of['torch'])}, {' and '.join(of['foreshock'])}. On "
        f"{of['replays']} of the {of['trainings']} records `foreshock detect` found, event for event, what the agent "
        f"had written while they were made ({of['live_events']} events). "
    )
    text += (
        f"**Stale: {stale} of them were judged by detectors that are not those of this tree.**"
        if stale
        else ("All were judged by the detectors as they are.")
    )
    otherwise = sum(count for judges, count in of["judges"].items() if judges != provenance.of_judges())
    if otherwise:
        text += (
            f" In {otherwise} of them the figures of slices of attention are those of an earlier shadow/: "
            "what `deviation_forward`, `deviation_backward`, `bias` and `output_error_drift` are said to find is what "
            "they found by those."
        )
    return textwrap.fill(text, 120)


def page(results: dict, current: str) -> str:
    """`current`: the hash of the detectors of this tree."""
    what = [
        [
            f"`{r['name']}`", r["family"], r["model"], r["what"], f"`{r['twin']}`" if r["twin"] else "–",
            f"{r['steps']}", str(len(r["seeds"])), str(r["with_events"]), str(r["events"]), str(r["missed"]),
        ]
        for r in results["recipes"]
    ]  # fmt: skip
    shipped = [row_of(f"`{name}`", of["all"]) for name, of in results["shipped"].items()]
    learned = [
        [*row_of(f"`{name}`", of["all"])[:1], of["threshold"] or "none", *row_of("", of["all"])[1:]]
        for name, of in results["learned"].items()
    ]
    default = ", ".join(f"`{name}`" for name in results["default"]) or "none"
    experimental = ", ".join(f"`{name}`" for name in results["ours"] if name not in results["default"]) or "none"
    parts = [INTRODUCTION.format(**results["protocol"])]
    parts.append(f"## The trainings\n\n{markdown(RECIPE_HEAD, what)}\n\n{made(results, current)}\n")
    parts.append(TRIED)
    parts.append(
        f"## What it found\n\n**Default** by these figures: {default}. Experimental: {experimental}.\n\n{DEFAULT}"
    )
    parts.append(f"{families(results)}\n\n" + "\n".join(verdicts(results)) + "\n")
    parts.append(f"## Where nothing is wrong\n\n{QUIET}\n\n{quiet(results)}\n")
    parts.append(f"## Attention that errs\n\n{ERRORS}\n\n{errors(results)}\n")
    parts.append(f"## As they ship, all recipes together\n\n{LEGEND}\n\n{markdown(HEAD, shipped)}\n")
    parts += [of_recipe(results, recipe) for recipe in faults(results)]
    parts.append(f"## With thresholds learned from other seeds\n\n{LEARNED}\n\n")
    parts[-1] += markdown((HEAD[0], "threshold", *HEAD[1:]), learned) + "\n"
    return "\n".join(part for part in parts if part)


def of_recipe(results: dict, recipe: dict) -> str:
    name = recipe["name"]
    rows = [
        row_of(f"`{detector}`", of["recipes"][name])
        for detector, of in results["shipped"].items()
        if name in of["recipes"] and (of["recipes"][name]["alarms"] or of["recipes"][name]["twin_hits"])
    ]
    return f"### {name}\n\nThose that alarmed at all.\n\n{markdown(HEAD, rows)}\n" if rows else ""


def text(results: dict) -> str:
    """For a terminal."""
    rows = [HEAD, *(row_of(name, of["all"]) for name, of in results["shipped"].items())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*lines, "", *verdicts(results), "", families(results), "", quiet(results), "", errors(results)])


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
    "of the right layer",
    "before the loss event",
    "steps before it",
    "`bias` warned",
    "of the right layer",
)
INTRODUCTION = """# Precursors

Generated by `./dev docs` from `bench/precursors/results.json`, which `./dev bench precursors --keep` makes of the
trainings kept in `bench/precursors/trainings`. How often is each detector right, how early, and how often does it cry
wolf? Trainings that all fail say nothing of that, so each training with a fault has a twin of the same seed without it,
and everything stands beside what chance would give. All trainings run under `foreshock run --record`;
`foreshock detect` finds the events and the alarms in the records.

The protocol (`bench/precursors/scoring.py`):

- **Event**: what `foreshock detect` calls `loss_spike`, `divergence` or `loss_rise`. Its onset counts, not the step at
  which it was found out. Where it finds none, a failure is also where three means of 16 losses in a row are a tenth
  above the twin's ("missed" below: no run in earnest has a twin).
- **Alarm**: a detector begins to warn anywhere while it warned nowhere. It counts at the step at which the value was
  taken.
- **Hit**: an alarm within the horizon before an onset: {horizon} steps, or {long_horizon} for the detectors of
  attention, whose signs come earlier. **Lead**: steps from the first such alarm to the onset.
- **Aftermath**: from an onset until the loss is back for three steps in a row, and {aftermath} steps more, nothing is
  scored: that detectors ring on after a spike is no merit and no fault. Nor are the first {first_step} steps scored,
  in which no event can be.
- **Base rate**: the share of scored steps, of a training and its twin up to the same step, that an onset follows within
  the same horizon. **Lift**: how much oftener an event follows an alarm than that; 1 is chance. Intervals of lift are
  95 %, from seeds drawn with replacement (four at least), since steps of one training are not independent. Those of
  hits are Wilson's, as if events were independent, which those of one training are not. **False alarms** are those of
  the trainings without a fault, each counted once and to its end, with one-sided 95 % Poisson bounds.
- A detector that only tells the arms apart reaches a lift of about 2 and foretells nothing. The null "step index", an
  alarm at a fixed step, shows how far one gets without looking.
- Thresholds that ship are from the literature or from seeds up to 1002, of which none is in here; nobody had seen a
  result of these trainings when a threshold, a horizon or a detector was chosen. The rules of others have the
  thresholds of their authors.

The rule of loss spikes is the usual one, so that figures can be compared. It misses slow failures: losses just below 6
sigma enter its window and widen it. `loss_rise` is for those; it was mended (robust noise, nothing suspect learned)
after it had missed trainings of `following-bias`, none of which is scored here.
"""
TRIED = """Tried and left out, because the loss hardly moved: a learning rate 30 times too large; no normalisation at
learning rates of 1e-2 and 3e-2 (at 1e-1 the loss is lost within 100 steps, before an event can be); growing scores and
a following bias of 1 ulp while the text is Python's source, which these models learn without attention; copying
without errors, where any one place will do. Text that is trivial for 150 steps and then real makes the loss jump in
the twin too. Of bad data nothing of ours warns before the loss does: it is high at the very batch that is corrupt, and
where ever more of the bytes are random (`corrupt-ramp`) it is the first thing to move. Errors of attention are larger
here than any kernel's would be, since these trainings last hundreds of steps and not thousands.

Not here: the kurtosis that trainscope watches beside its CUSUM, which the record does not have.
"""
DEFAULT = """A detector is default if it had at most one false alarm per 10 000 steps in every kind of training
without a fault, and either foretold more than half of the events of a recipe (lift of 2, median lead of 5 steps) or
named the layer of a planted error in seven trainings of eight. All others are experimental.

"""
QUIET = """Alarms, and alarms per 10 000 scored steps with the upper 95 % Poisson bound. For a bound of one it takes
30 000 steps without any. "–": it had nothing to look at."""
ERRORS = """Two errors of the same kernel, told apart by two detectors. An output that is biased shows in `bias`,
whether it does harm or not. Only an error that follows the output's gradient adds up over steps, and that shows in
`output_error_drift`, seen in the backward. So `bias` alone says that the kernel is worth a look and that the loss need
not suffer; with `output_error_drift` it will, if the layer matters to it. Rows without a planted error show what both
say when attention is as it should be. "Of the right layer": the first warning was about the layer that erred; half of
them would be chance."""
LEGEND = """`twin`: windows of events in which the twin alarmed too. `lead`: median (quartiles; a tenth is below p10).
`alarms`: in scored steps of both arms; `right`: those that an onset followed. In brackets: bounds.
Most events are those of `adam-net`, which has many in one training: the tables by recipe say more than this one."""
LEARNED = """One threshold for all recipes, in multiples of the one that ships: the lowest tried that had at most one
false alarm per 10 000 steps in the trainings without a fault with even seeds. Scored on the odd seeds only. Of the step
index: the step of most lift, by recipe. "none": no threshold was quiet enough, or there was nothing to learn from."""


def main() -> None:
    PAGE.write_text(page(json.loads(RESULTS.read_text()), provenance.of_detectors()))


if __name__ == "__main__":
    main()
