"""Divides detectors into default and experimental ones, by the results of the benchmark bench/precursors. Dashboards
show detectors of both kinds. An alert whose detectors are all experimental uses them, but has the severity "info", for
which Alertmanager has no receiver. Other alerts use only their default detectors. `default`: all default detectors."""

import json
import pathlib
from collections.abc import Iterable

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "bench" / "precursors" / "results.json"

Default = frozenset[str]


def default_detectors() -> Default:
    return frozenset(json.loads(RESULTS.read_text())["default"])


def standing(detector: str, default: Default) -> str:
    return "default" if detector in default else "experimental"


def alerting(findings: dict[str, str], default: Default) -> dict[str, str]:
    """Selects the detectors that an alert uses from `findings` (detector: text of its finding): the default ones, or
    all if none is a default one."""
    return {name: finding for name, finding in findings.items() if name in default} or findings


def severity(detectors: Iterable[str], default: Default) -> str:
    """The severity of an alert on `detectors`: "ticket" if all are default ones, else "info", without a receiver."""
    return "ticket" if default.issuperset(detectors) else "info"


def remark(detectors: Iterable[str], default: Default) -> str:
    """A phrase for an alert's text if one of its detectors is experimental."""
    return "" if default.issuperset(detectors) else ", experimental: not proven by the benchmark"
