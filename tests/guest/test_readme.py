"""The tests that README.md names are there."""

import pathlib
import re

import pytest
from monitored import ROOT

pytestmark = pytest.mark.quick


def test_every_named_test_exists():
    named = set(re.findall(r"`(\w+)`", (ROOT / "tests" / "guest" / "README.md").read_text()))
    named = {name for name in named if name.startswith("test_") or name[0].isupper()}
    there = set()
    for path in pathlib.Path(ROOT / "tests").rglob("*"):
        if path.suffix == ".py":
            there |= set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
        if path.suffix == ".cpp":
            there |= set(re.findall(r"^TEST(?:_F|_P)?\(\w+, (\w+)\)", path.read_text(), re.MULTILINE))
    assert len(named) > 40
    assert named - there == set()
