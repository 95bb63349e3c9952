"""Which detectors may be relied on: those that the bench of bench/precursors found quiet where nothing is wrong, and
that foretold failures of a kind there or named the layer of a planted error. All others are experimental: boards
show them; an alert is made of them only where no default detector sees the same, and nobody is told of that one."""

import json
import pathlib
from collections.abc import Iterable

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "bench" / "precursors" / "results.json"

Default = frozenset[str]


def default_detectors() -> Default:
    return frozenset(json.loads(RESULTS.read_text())["default"])


def standing(detector: str, default: Default) -> str:
    return "default" if detector in default else "experimental"


def told_of(seen: dict[str, str], default: Default) -> dict[str, str]:
    """Of the detectors that an alert could be made from those that it is: the default ones, or, where none is, all."""
    return {name: what for name, what in seen.items() if name in default} or seen


def severity(detectors: Iterable[str], default: Default) -> str:
    """Nobody is sent to work by what was not shown to be right."""
    return "ticket" if default.issuperset(detectors) else "info"


def remark(detectors: Iterable[str], default: Default) -> str:
    """For an alert's text."""
    return "" if default.issuperset(detectors) else ", experimental"
