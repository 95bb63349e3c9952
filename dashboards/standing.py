"""Divides detectors into default and experimental ones, by the results of bench/precursors. Dashboards show both. An
alert uses experimental detectors only if it has no default detector; it is then sent to no receiver."""

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
    """Selects the detectors that an alert uses: the default ones of `seen`, or all if no default one is in it."""
    return {name: what for name, what in seen.items() if name in default} or seen


def severity(detectors: Iterable[str], default: Default) -> str:
    """Only default detectors raise tickets."""
    return "ticket" if default.issuperset(detectors) else "info"


def remark(detectors: Iterable[str], default: Default) -> str:
    """Marks an alert's text if its detectors are experimental."""
    return "" if default.issuperset(detectors) else ", experimental: not proven by the benchmark"
