"""Fills figures into docs/runbook.md, after <!-- measured: DETECTORS -->: how often these detectors were right in the
benchmark bench/precursors (`results`: its results.json). There a detector should warn before a loss event, a spike or
divergence. Each warning in a twin, the same training without the planted fault, is a false alarm."""

import json
import pathlib
import re

from standing import RESULTS, standing  # standing(): "default" or "experimental"

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "runbook.md"
BLOCK = re.compile(r"(<!-- measured: ([\w ]+) -->\n).*?(<!-- end -->)", re.S)  # group 2: names of detectors


def number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"


def line(detector: str, results: dict) -> str:
    score = results["shipped"][detector]["all"]  # with the shipped settings, over all trainings
    text = f"- `{detector}`: {standing(detector, frozenset(results['default']))}; "
    if score["events"] == 0:
        return text + "not measured.\n"
    text += f"warned before {score['hits']} of {score['events']} loss events"
    if score["lead_median"] is not None:
        text += f", {score['lead_median']:g} steps ahead in the median"
    if score["alarms"] and score["lift"] is not None:
        text += f"; an event followed a warning {number(score['lift'])} times as often as by chance"
        if score["lift_low"] is not None:
            text += f" (95 %: {number(score['lift_low'])} to {number(score['lift_high'])})"
    if score["twin_steps"]:
        text += f"; {number(score['false_per_10k'])} false alarms in 10 000 healthy steps"
        text += f" (95 %: at most {number(score['false_per_10k_most'])})"
    return text + named_layers(detector, results["attention_errors"]) + ".\n"


# The kinds of errors that the benchmark plants in attention's output, by their relation to the output's gradient.
PLANTS = {"unrelated": "is unrelated to the gradient", "following": "follows it"}


def named_layers(detector: str, trainings: list[dict]) -> str:
    """How often the first warning named the layer with the planted error. `trainings`: a row per kind of training."""
    tested = {plant: [row for row in trainings if row["plant"] == plant and detector in row] for plant in PLANTS}
    parts = [
        f"{sum(row[detector]['right'] for row in rows)} of {sum(row['trainings'] for row in rows)} trainings whose"
        f" error {PLANTS[plant]}"
        for plant, rows in tested.items()
        if rows
    ]
    return f"; named the layer of a planted error in {' and '.join(parts)}" if parts else ""


def filled(page: str, results: dict) -> str:
    """Fills each block of `page` with the lines of the detectors that the block names."""

    def lines(block: re.Match) -> str:
        names = block.group(2).split()
        return block.group(1) + "".join(line(name, results) for name in names) + block.group(3)

    return BLOCK.sub(lines, page)


def runbook() -> str:
    return filled(PAGE.read_text(), json.loads(RESULTS.read_text()))
