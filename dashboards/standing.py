"""Which detectors may be relied on: those that the bench of bench/precursors found quiet where nothing is wrong, and
that foretold failures of a kind there or named the layer of a planted error. All others are experimental, and alerts
and runbook say so."""

import json
import pathlib

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "bench" / "precursors" / "results.json"

Default = frozenset[str]


def default_detectors() -> Default:
    return frozenset(json.loads(RESULTS.read_text())["default"])


def standing(detector: str, default: Default) -> str:
    return "default" if detector in default else "experimental"


def remark(detectors: str, default: Default) -> str:
    """For an alert's text: ", experimental" if the detector that it names is. `detectors`: a|b, those it may name."""
    names = detectors.split("|")
    doubtful = [name for name in names if name not in default]
    if len(doubtful) in (0, len(names)):
        return ", experimental" if doubtful else ""
    return f'{{{{ if match "^({"|".join(doubtful)})$" $labels.detector }}}}, experimental{{{{ end }}}}'
