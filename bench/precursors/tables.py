"""The results in words: docs/precursors.md, and what the bench prints. `tables.py` writes the page.

Standard library only: `./dev docs` runs it without a virtual environment.
"""

from __future__ import annotations

import json
import pathlib

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
LEAST_LIFT, LEAST_LEAD = 2.0, 5
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
    lines = []
    for recipe in results["recipes"]:
        pairs = len(set(recipe["seeds"]["fault"]) & set(recipe["seeds"]["control"]))
        begin = f"- **{recipe['name']}** ({pairs} {'pair' if pairs == 1 else 'pairs'}): "
        if pairs == 0 or recipe["with_events"]["fault"] == 0:
            lines.append(begin + ("not trained." if pairs == 0 else "no loss event."))
            continue
        good, sure = [], []
        for name, of in results["shipped"].items():
            found = of["recipes"].get(recipe["name"])
            if not found or found["lead_median"] is None or found["lift"] is None:
                continue
            if found["twin_hits"] >= found["hits"]:  # it alarms there whether something is wrong or not
                continue
            if (
                found["lift"] >= LEAST_LIFT
                and found["lead_median"] >= LEAST_LEAD
                and 2 * found["hits"] > found["events"]
            ):
                good.append(f"`{name}` ({found['hits']} of {found['events']}, lead {found['lead_median']:g})")
                if found["lift_low"] is not None and found["lift_low"] >= LEAST_LIFT:
                    sure.append(f"`{name}`")
        text = "; ".join(good) if good else "none"
        lines.append(f"{begin}{text}. Lift ≥ 2 in its whole interval: {', '.join(sure) or 'none'}.")
    return lines


def quiet(results: dict) -> str:
    """How much has been seen of trainings that are well, by model."""
    models = {"the net": ["adam-net"], "the GPTs": [r["name"] for r in results["recipes"] if r["name"] != "adam-net"]}
    lines = []
    for model, names in models.items():
        per_detector = {
            detector: [of["recipes"][name] for name in names if name in of["recipes"]]
            for detector, of in results["shipped"].items()
        }
        steps = max(sum(one["twin_steps"] for one in of) for of in per_detector.values())
        if steps == 0:
            continue
        silent = [f"`{name}`" for name, of in per_detector.items() if of and not any(one["false"] for one in of)]
        lines.append(
            f"- **Twins of {model}** have {steps} scored steps. Silent in all of them: {', '.join(silent) or 'none'}. "
            f"That bounds false alarms at {NONE_SEEN / steps * 1e4:.1f} per 10 000 steps (95 %); for a bound of one it "
            f"takes {NONE_SEEN * 1e4:.0f} steps without any."
        )
    return "\n".join(lines)


def page(results: dict) -> str:
    protocol = results["protocol"]
    pairs = [len(set(r["seeds"]["fault"]) & set(r["seeds"]["control"])) for r in results["recipes"]]
    first = [seed for recipe in results["recipes"] for seed in recipe["seeds"]["fault"]]
    what = [
        [
            f"`{r['name']}`", r["family"], r["fault"], r["control"], f"{r['steps']}",
            " / ".join(str(len(r["seeds"][arm])) for arm in ("fault", "control")),
            " / ".join(str(r["with_events"][arm]) for arm in ("fault", "control")),
            " / ".join(str(r["events"][arm]) for arm in ("fault", "control")),
            str(r["missed"]),
        ]
        for r in results["recipes"]
    ]  # fmt: skip
    shipped = [row_of(f"`{name}`", of["all"]) for name, of in results["shipped"].items()]
    learned = [
        [*row_of(f"`{name}`", of["all"])[:1], of["threshold"] or "none", *row_of("", of["all"])[1:]]
        for name, of in results["learned"].items()
    ]
    parts = [INTRODUCTION.format(**protocol)]
    parts.append(f"## The trainings\n\n{markdown(RECIPE_HEAD, what)}\n")
    parts.append(SEEDS.format(least=min(pairs), most=max(pairs), first=min(first, default=0)))
    parts.append(TRIED)
    parts.append("## What it found\n\n" + "\n".join(verdicts(results)) + "\n\n" + quiet(results) + "\n")
    parts.append(f"## As they ship, all recipes together\n\n{LEGEND}\n\n{markdown(HEAD, shipped)}\n")
    for recipe in results["recipes"]:
        name = recipe["name"]
        rows = [
            row_of(f"`{detector}`", of["recipes"][name])
            for detector, of in results["shipped"].items()
            if name in of["recipes"] and (of["recipes"][name]["alarms"] or of["recipes"][name]["twin_hits"])
        ]
        if rows:
            parts.append(f"### {name}\n\nThose that alarmed at all.\n\n{markdown(HEAD, rows)}\n")
    parts.append(f"## With thresholds learned from other seeds\n\n{LEARNED}\n\n")
    parts[-1] += markdown((HEAD[0], "threshold", *HEAD[1:]), learned) + "\n"
    return "\n".join(parts)


def text(results: dict) -> str:
    """For a terminal."""
    rows = [HEAD, *(row_of(name, of["all"]) for name, of in results["shipped"].items())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines) + "\n" + "\n".join(verdicts(results)) + "\n" + quiet(results)


RECIPE_HEAD = (
    "recipe",
    "family",
    "fault",
    "twin",
    "steps",
    "trained (fault / twin)",
    "with a loss event",
    "loss events",
    "missed",
)
INTRODUCTION = """# Precursors

Generated by `./dev docs` from `bench/precursors/results.json`, which `./dev bench precursors` makes. How often is each
detector right, how early, and how often does it cry wolf? Trainings that all fail say nothing of that, so each training
with a fault has a twin of the same seed without it, and everything stands beside what chance would give. All trainings
run under `foreshock run --record`; `foreshock detect` finds the events and the alarms in the records.

The protocol (`bench/precursors/scoring.py`):

- **Event**: what `foreshock detect` calls `loss_spike`, `divergence` or `loss_rise`. Its onset counts, not the step at
  which it was found out. Where it finds none, a failure is also where the mean of 16 losses stays a tenth above the
  twin's for 32 steps ("missed" below: no run in earnest has a twin). This second rule was added after the first
  training of `following-bias`, all others were fixed before any training.
- **Alarm**: a detector begins to warn anywhere while it warned nowhere. It counts at the step at which the value was
  taken.
- **Hit**: an alarm in the {horizon} steps before an onset. **Lead**: steps from the first such alarm to the onset.
- **Aftermath**: from an onset until the loss is back for three steps in a row, and {aftermath} steps more, nothing is
  scored: that detectors ring on after a spike is no merit and no fault. Nor are the first {first_step} steps scored,
  in which no event can be.
- **Base rate**: the share of scored steps, of both arms, that an onset follows within {horizon} steps. **Lift**: how
  much oftener an event follows an alarm than that; 1 is chance. Intervals of lift are 95 %, from seeds drawn with
  replacement (four at least), since steps of one training are not independent. Those of hits are Wilson's, as if
  events were independent, which those of one training are not. Those of false alarms are one-sided 95 % Poisson bounds.
- A detector that only tells the arms apart reaches a lift of about 2 and foretells nothing. The null "step index", an
  alarm at a fixed step, shows how far one gets without looking.
- Thresholds that ship were set before, from the literature; that of `gradient_growth` after a look at trainings like
  `adam-net`. No seed that was used for it is in here. The rules of others have the thresholds of their authors.
"""
SEEDS = """Pairs run: {least} to {most} of each recipe, seeds from {first} on, each in one recipe only, so that no twin
counts twice. `./dev bench precursors` trains eight pairs unless told otherwise; below that, a wide interval says that
nothing is known, and a narrow one says little more.
"""
TRIED = """Tried and left out, because the loss hardly moved: a learning rate 30 times too large; no normalisation at
learning rates of 1e-2 and 3e-2 (at 1e-1 the loss is lost within 100 steps, before an event can be); growing scores and
a following bias of 1 ulp while the text is Python's source, which these models learn without attention; copying without
errors, where any one place will do. Text that is trivial for 150 steps and then real makes the loss jump in the twin
too.

Not here: the kurtosis that trainscope watches beside its CUSUM, which the record does not have.
"""
LEGEND = """`twin`: windows of events in which the twin alarmed too. `lead`: median (quartiles; a tenth is below p10).
`alarms`: in scored steps of both arms; `right`: those that an onset followed. In brackets: bounds.
Most events are those of `adam-net`, which has many in one training: the tables by recipe say more than this one."""
LEARNED = """One threshold for all recipes, in multiples of the one that ships: the lowest tried that had at most one
false alarm per 10 000 steps in the twins with even seeds. Scored on the odd seeds only. Of the step index: the step
of most lift, by recipe. "none": no threshold was quiet enough, or there was nothing to learn from."""


def main() -> None:
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
