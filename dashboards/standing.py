"""Divides detectors into default and experimental ones, by the results of the benchmark bench/precursors. Dashboards
show detectors of both kinds. An alert whose detectors are all experimental uses them, but has the severity "info", for
which Alertmanager has no receiver. Other alerts use only their default detectors. `default_names`: all default ones."""

import json
import pathlib
from collections.abc import Iterable

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "bench" / "precursors" / "results.json"

DetectorNames = frozenset[str]


def default_detectors() -> DetectorNames:
    return frozenset(json.loads(RESULTS.read_text())["default"])


def standing(detector: str, default_names: DetectorNames) -> str:
    return "default" if detector in default_names else "experimental"


def findings_used(findings: dict[str, str], default_names: DetectorNames) -> dict[str, str]:
    """Selects the detectors that an alert uses from `findings` (detector: text of its finding): the default ones, or
    all if none is a default one."""
    return {name: finding for name, finding in findings.items() if name in default_names} or findings


def severity(detectors: Iterable[str], default_names: DetectorNames) -> str:
    """The severity of an alert on `detectors`: "ticket" if all are default ones, else "info", without a receiver."""
    return "ticket" if default_names.issuperset(detectors) else "info"


def remark(detectors: Iterable[str], default_names: DetectorNames) -> str:
    """A phrase for an alert's text if one of its detectors is experimental."""
    return "" if default_names.issuperset(detectors) else ", experimental: not proven by the benchmark"
