"""What run.py calls a difference, and what it leaves out."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import observe  # noqa: E402
from compare import MEMORY_KIB, compare  # noqa: E402


def row(**changed: object) -> dict:
    return {"outcome": ["passed"] * 3, "output": ["1"], "warnings": [], "peak_kib": 100} | changed


@pytest.mark.parametrize(
    "changed", [{"outcome": ["passed", "failed", "passed"]}, {"output": ["2"]}, {"warnings": ["UserWarning: x"]}]
)
def test_anything_seen_that_differs_is_a_difference(changed):
    found = compare({"a": row()}, {"a": row()}, {"a": row(**changed)})
    assert [text.partition(":")[0] for text in found.differing] == ["a"]
    assert found.same == []


def test_a_test_that_differs_without_the_monitor_is_left_out():
    found = compare(
        {"a": row(), "b": row()}, {"a": row(output=["2"]), "b": row()}, {"a": row(output=["3"]), "b": row()}
    )
    assert (found.unsteady, found.same, found.differing) == (["a"], ["b"], [])


def test_a_test_that_did_not_run_is_missing():
    assert compare({"a": row()}, {"a": row()}, {}).missing == ["a"]


@pytest.mark.parametrize(("peak", "is_named"), [(MEMORY_KIB, False), (2 * MEMORY_KIB, True)])
def test_a_higher_peak_of_memory_is_named(peak, is_named):
    found = compare({"a": row()}, {"a": row()}, {"a": row(peak_kib=peak)})
    assert bool(found.more_memory) == is_named


def test_addresses_durations_and_temporary_folders_are_not_output():
    text = "<obj at 0x7f5d7b9f8780> took 1.25 s at 12:30:01 in /tmp/pytest-of-root/pytest-3/x\nloss 0.25\n"
    other = "<obj at 0x7ff3a3167e40> took 0.75 s at 12:31:59 in /tmp/pytest-of-root/pytest-4/x\nloss 0.25\n"
    assert observe.plain(text) == observe.plain(other)
    assert observe.plain("loss 0.25") != observe.plain("loss 0.26")
