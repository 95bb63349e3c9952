"""Fills figures into docs/runbook.md, after <!-- measured: DETECTORS -->: how often these detectors were right on the
trainings of the benchmark bench/precursors. `results` is the benchmark's results.json."""

import json
import pathlib
import re

from standing import RESULTS, standing

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "runbook.md"
BLOCK = re.compile(r"(<!-- measured: ([\w ]+) -->\n).*?(<!-- end -->)", re.S)  # group 2: names of detectors


def number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"


def line(detector: str, results: dict) -> str:
    found = results["shipped"][detector]["all"]  # with the shipped settings, over all trainings
    text = f"- `{detector}`: {standing(detector, frozenset(results['default']))}; "
    if found["events"] == 0:
        return text + "not measured.\n"
    text += f"warned before {found['hits']} of {found['events']} loss events"
    if found["lead_median"] is not None:
        text += f", {found['lead_median']:g} steps ahead in the median"
    if found["alarms"] and found["lift"] is not None:
        text += f"; an event followed a warning {number(found['lift'])} times as often as by chance"
        if found["lift_low"] is not None:
            text += f" (95 %: {number(found['lift_low'])} to {number(found['lift_high'])})"
    if found["twin_steps"]:
        text += f"; {number(found['false_per_10k'])} false alarms in 10 000 healthy steps"
        text += f" (95 %: at most {number(found['false_per_10k_most'])})"
    return text + named(detector, results["attention_errors"]) + ".\n"


# Kinds of errors planted in attention's output, and a text on their relation to the output's gradient.
PLANTS = {"unrelated": "is unrelated to the gradient", "following": "follows it"}


def named(detector: str, trainings: list[dict]) -> str:
    """How often the first warning named the layer of the planted error. `trainings`: a row per kind of training."""
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
