"""Writes the results as text: RESULTS.md with every table, docs/precursors.md on one page, and the bench's output.

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
REPORT = RESULTS.with_name("RESULTS.md")
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
NONE_SEEN = 3.0  # one-sided 95 % Poisson bound of a count of zero: -ln 0.05


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
    """A line per recipe with two lists: the detectors that predict its events well enough for an alert (by lift, lead
    and more than half of the events), and among them those whose interval of lift is entirely high enough."""
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
    """The table of false alarms in trainings without a fault: of each detector, and of all default detectors
    together."""
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
    """The number of scored steps, taken from the detector that has values for most of them."""
    of = [found["models"].get(recipe["name"]) for found in results["shipped"].values()]
    return max((each["steps"] for each in of if each), default=0)


def errors(results: dict) -> str:
    """The table of trainings with and without an attention error."""
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
    """The table of families of failures, with the default detectors that warned before them."""
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
        rows.append([family, "; ".join(good) if good else "none" if with_event else "no loss event"])
    return markdown(("family", "default detectors with lift ≥ 2 and a median lead ≥ 5 steps"), rows)


def made(results: dict, current: str) -> str:
    """Says which trainings the figures come from, and whether their detectors are those of this tree."""
    of = results["made"]
    stale = of["trainings"] if results["detectors"] != current else of["stale"]
    text = (
        f"{of['trainings']} trainings, torch {' and '.join(of['torch'])}, {' and '.join(of['foreshock'])}. On "
        f"{of['replays']} of the {of['trainings']} records `foreshock detect` reproduced every event that the agent "
        f"had written during the training ({of['live_events']} events). "
    )
    text += (
        f"**Stale: {stale} of them were scored with detectors of another version than this tree.**"
        if stale
        else "All were scored with the detectors of this tree."
    )
    otherwise = sum(count for judges, count in of["judges"].items() if judges != provenance.of_judges())
    if otherwise:
        text += (
            f" In {otherwise} of them the attention errors were computed by an earlier version of shadow/: the rows of "
            "`deviation_forward`, `deviation_backward`, `bias` and `output_error_drift` are of that version."
        )
    return textwrap.fill(text, 120)


def page(results: dict, current: str) -> str:
    """The text of docs/precursors.md. `current`: the hash of the detectors of this tree."""
    parts = [SHORT.format(**results["protocol"]), made(results, current) + "\n", "## Default and experimental\n"]
    parts += [standing(results), ONE_LINE, short_table(results) + "\n"]
    parts.append(f"## Which failures were predicted\n\n{short_families(results)}\n")
    return "\n".join(parts)


def short_families(results: dict) -> str:
    """The table of families of failures, with the default detectors that warned: in how many recipes, how early."""
    rows = []
    for family in dict.fromkeys(recipe["family"] for recipe in faults(results)):
        of = [recipe["name"] for recipe in faults(results) if recipe["family"] == family]
        cells = []
        for name in results["default"]:
            found = [results["shipped"][name]["recipes"].get(recipe) for recipe in of]
            leads = [each["lead_median"] for each in found if each and attention_errors.foretells(each)]
            if leads:
                steps = f"{min(leads):g}" if len(leads) == 1 else f"{min(leads):g} to {max(leads):g}"
                cells.append(f"`{name}` in {len(leads)} of {len(of)} recipes, {steps} steps before")
        has_event = any(recipe["with_events"] for recipe in faults(results) if recipe["family"] == family)
        rows.append([family, "; ".join(cells) or ("none" if has_event else "no loss event")])
    return markdown(("family of failures", "default detectors with lift ≥ 2 and a median lead ≥ 5 steps"), rows)


def standing(results: dict) -> str:
    default = ", ".join(f"`{name}`" for name in results["default"]) or "none"
    experimental = ", ".join(f"`{name}`" for name in results["ours"] if name not in results["default"]) or "none"
    return f"**Default**: {default}.\n\n**Experimental**: {experimental}.\n\n{DEFAULT}"


def short_table(results: dict) -> str:
    rows = []
    for name, of in results["shipped"].items():
        found = of["all"]
        lead = "–" if found["lead_median"] is None else f"{found['lead_median']:g} steps"
        low, high = between(found["lift_low"], found["lift_high"]), number(found["lift"])
        false = f"{number(found['false_per_10k'])} (at most {number(found['false_per_10k_most'])})"
        rows.append([f"`{name}`", f"{found['hits']} of {found['events']}", lead, f"{high} {low}", false])
    return markdown(SHORT_HEAD, rows)


def report(results: dict, current: str) -> str:
    """The text of RESULTS.md, with every table. `current`: the hash of the detectors of this tree."""
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
    parts = [INTRODUCTION.format(**results["protocol"])]
    parts.append(f"## The trainings\n\n{markdown(RECIPE_HEAD, what)}\n\n{made(results, current)}\n")
    parts.append(TRIED)
    parts.append(f"## Results\n\n{standing(results)}")
    parts.append(f"{families(results)}\n\n" + "\n".join(verdicts(results)) + "\n")
    parts.append(f"## Trainings without a fault\n\n{QUIET}\n\n{quiet(results)}\n")
    parts.append(f"## Planted attention errors\n\n{ERRORS}\n\n{errors(results)}\n")
    parts.append(f"## Shipped thresholds, all recipes together\n\n{LEGEND}\n\n{markdown(HEAD, shipped)}\n")
    parts += [of_recipe(results, recipe) for recipe in faults(results)]
    parts.append(f"## Thresholds learned from other seeds\n\n{LEARNED}\n\n")
    parts[-1] += markdown((HEAD[0], "threshold", *HEAD[1:]), learned) + "\n"
    return "\n".join(part for part in parts if part)


def of_recipe(results: dict, recipe: dict) -> str:
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
SHORT = """# How good the detectors are

Generated by `./dev docs`. The full report, with the protocol and a table for every kind of training, is
[bench/precursors/RESULTS.md](../bench/precursors/RESULTS.md).

A benchmark of small trainings measures how often each detector is right, how early it warns, and how often it warns
for nothing. Each training with a planted fault has a twin with the same seed and no fault. The results say which
detectors deserve attention first. They do not predict what happens in a large training.

- **Hit**: the detector starts to warn within {horizon} steps before the onset of a loss event ({long_horizon} steps
  for attention detectors). **Lead**: steps from the first such warning to the onset.
- **Lift**: how much more often a loss event follows a warning than an arbitrary step. 1 is chance. A detector that
  only separates faulty trainings from healthy ones reaches about 2.
- **False alarms** are counted in the trainings without a fault.
"""
ONE_LINE = """All recipes together, with the shipped thresholds. The rules below the detectors are published by others
and are shown for comparison. Most of the 246 events come from one recipe (`adam-net`).
"""
INTRODUCTION = """# Results of the detector benchmark

Generated by `./dev docs` from `bench/precursors/results.json`. `./dev bench precursors --keep` computes that file
from the trainings in `bench/precursors/trainings`. The summary on one page is
[docs/precursors.md](../../docs/precursors.md).

How often is each detector right, how early does it warn, and how often does it warn for nothing? Each training with a
fault has a twin with the same seed and no fault, and every figure is compared with chance. All trainings run under
`foreshock run --record`; `foreshock detect` finds the events and the alarms in the records.

The protocol (`bench/precursors/scoring.py`):

- **Event**: a `loss_spike`, `divergence` or `loss_rise` of `foreshock detect`. Its onset counts, not the step at
  which it was detected. If none is found, a training still counts as failed where three means of 16 losses in a row
  are 10 % above the twin's ("missed" below; a production run has no twin).
- **Alarm**: a detector starts to warn while it warned nowhere else. It counts at the step at which the value was
  taken.
- **Hit**: an alarm within the horizon before an onset: {horizon} steps, or {long_horizon} for the detectors of
  attention, whose signs come earlier. **Lead**: steps from the first such alarm to the onset.
- **Aftermath**: nothing is scored from an onset until the loss has recovered for three steps in a row, plus
  {aftermath} steps, because alarms after a spike are neither right nor wrong. The first {first_step} steps are not
  scored either: no event is possible there.
- **Base rate**: the share of scored steps, in a training and its twin up to the same step, that an onset follows
  within the same horizon. **Lift**: how much more often an event follows an alarm; 1 is chance. Intervals of lift are
  95 %, from seeds drawn with replacement (at least four), because steps of one training are not independent.
  Intervals of hits are Wilson's and assume independent events; the events of one training are not independent.
  **False alarms** are those in trainings without a fault, each counted once over the whole training, with one-sided
  95 % Poisson bounds.
- A detector that only separates the two arms reaches a lift of about 2 and predicts nothing. The null detector "step
  index", an alarm at a fixed step, shows how far this goes.
- Shipped thresholds come from the literature or from seeds up to 1002, which are not scored here. Thresholds,
  horizons and detectors were chosen before any result of these trainings was known. Rules of others use their
  authors' thresholds.

The rule for loss spikes is the usual one, so that figures can be compared. It misses slow failures: losses just below
6 sigma enter its window and widen it. `loss_rise` detects those. It was corrected (robust noise, suspect losses are
not learned) after it had missed trainings of `following-bias`, none of which is scored here.
"""
TRIED = """Tried and left out because the loss hardly moved: a learning rate 30 times too large; no normalization at
learning rates of 1e-2 and 3e-2 (at 1e-1 the loss is lost within 100 steps, before an event is possible); growing
scores and a following bias of 1 ulp on Python source text, which these models learn without attention; copying
without errors, where any single position suffices. Text that is trivial for 150 steps and real afterwards makes the
loss jump in the twin too. For bad data no detector of ours warns before the loss: the loss is high at the corrupt
batch itself, and with ever more random bytes (`corrupt-ramp`) the loss moves first. Attention errors are larger here
than those of any real kernel, because these trainings last hundreds of steps and not thousands.

Not compared: the kurtosis that trainscope computes beside its CUSUM. The record does not contain it.
"""
DEFAULT = """A detector is default if it had at most one false alarm per 10 000 steps in every kind of training
without a fault, and either warned before more than half of the events of one recipe (lift of at least 2, median lead
of at least 5 steps) or named the layer of a planted error in seven trainings of eight. All others are experimental.
"""
QUIET = """Alarms, and alarms per 10 000 scored steps with the upper 95 % Poisson bound. A bound of one needs 30 000
steps without an alarm. "–": the training has no series for this detector."""
ERRORS = """Two kinds of error in the same kernel, separated by two detectors. A biased output raises `bias`, harmful
or not. Only an error that follows the gradient of the output adds up over steps; it raises `output_error_drift`,
which is measured in the backward pass. `bias` alone therefore means that the kernel should be examined and that the
loss need not suffer. With `output_error_drift` it suffers if the layer matters. Rows without a planted error show
both detectors on correct attention. "For the right layer": the first warning named the layer with the error; half of
them would be chance."""
LEGEND = """`twin`: windows of events in which the twin raised an alarm too. `lead`: median (quartiles; a tenth is
below p10). `alarms`: in scored steps of both arms; `right`: those followed by an onset. In brackets: bounds. Most
events come from `adam-net`, which has many in one training: the tables by recipe say more than this one."""
LEARNED = """One threshold for all recipes, in multiples of the shipped one: the lowest tried that had at most one
false alarm per 10 000 steps in the trainings without a fault with even seeds. Scored on the odd seeds only. For the
step index: the step with the largest lift, by recipe. "none": no threshold was quiet enough, or there was nothing to
learn from."""


def main() -> None:
    results, current = json.loads(RESULTS.read_text()), provenance.of_detectors()
    PAGE.write_text(page(results, current))
    REPORT.write_text(report(results, current))


if __name__ == "__main__":
    main()
