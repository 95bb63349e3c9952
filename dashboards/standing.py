"""Divides detectors into default and experimental ones, by the results of the benchmark bench/precursors. Dashboards
show detectors of both kinds. An alert uses experimental detectors only if it has no default detector; Alertmanager then
sends it to no receiver. `default` is the set of the default detectors."""

import json
import pathlib
from collections.abc import Iterable

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "bench" / "precursors" / "results.json"

Default = frozenset[str]


def default_detectors() -> Default:
    return frozenset(json.loads(RESULTS.read_text())["default"])


def standing(detector: str, default: Default) -> str:
    return "default" if detector in default else "experimental"


def alerting(seen: dict[str, str], default: Default) -> dict[str, str]:
    """Selects the detectors that an alert uses: the default ones of `seen` (detector: finding), else all of `seen`."""
    return {name: what for name, what in seen.items() if name in default} or seen


def severity(detectors: Iterable[str], default: Default) -> str:
    """The severity of an alert on `detectors`: "ticket" if all are default ones, else "info", without a receiver."""
    return "ticket" if default.issuperset(detectors) else "info"


def remark(detectors: Iterable[str], default: Default) -> str:
    """A phrase for an alert's text if one of its detectors is experimental."""
    return "" if default.issuperset(detectors) else ", experimental: not proven by the benchmark"
