"""The soak: nothing of a long training grows without a bound, and the bench notices what does."""

import importlib.util
import os
import subprocess
import sys

import monitored
import pytest

SOAK = monitored.ROOT / "bench" / "soak.py"


@pytest.fixture
def soak():
    specification = importlib.util.spec_from_file_location("soak", SOAK)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.long
def test_forty_thousand_steps_and_fifteen_hundred_restarts_are_flat(show_line):
    environment = os.environ | {"FORESHOCK_BUILD": str(monitored.BUILD)}
    done = subprocess.run(
        [sys.executable, str(SOAK), "--short"], env=environment, capture_output=True, text=True, timeout=600
    )
    for line in done.stdout.splitlines():
        show_line("soak", line)
    assert done.returncode == 0, done.stdout + done.stderr


def test_growth_beyond_its_bound_fails(soak):
    parts = [(1000 * n, {"files": 10, "agent.log": 100 * n, "record": 0}) for n in range(1, 11)]
    bounds = {"agent.log": soak.Bound(600)}
    assert [row["ok"] for row in soak.growth_rows(parts, bounds, 1000)] == [True, False, True]
    bounds = {"agent.log": soak.Bound(0, each=0.1)}
    assert [row["ok"] for row in soak.growth_rows(parts, bounds, 1000)] == [True, True, True]


def test_a_quantity_without_a_bound_may_not_grow(soak):
    parts = [(1000 * n, {"files": 10 if n < 10 else 11}) for n in range(1, 11)]
    assert [row["ok"] for row in soak.growth_rows(parts, {}, 1000)] == [False]
