"""Which cases of a parametrized test `./dev test` runs; the others are left to `./dev test --all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def keep(cases: Iterable[Any], *kept: Any, several: bool = False) -> list[Any]:
    """The cases, of which all but `kept` have the marker `long`. `several`: each case is a tuple of arguments."""
    cases = list(cases)
    assert all(case in cases for case in kept), f"no such case among {cases}"
    marked = []
    for case in cases:
        marks = () if case in kept else pytest.mark.long
        marked.append(pytest.param(*case, marks=marks) if several else pytest.param(case, marks=marks))
    return marked
