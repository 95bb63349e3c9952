"""No other value passes the tests of the alerts: half as much more, or a third less, of any breaks one."""

import concurrent.futures
import copy
import re

import pytest
from alert_rules import TESTS, VALUES, group, promtool_tests
from scraping import needs

pytestmark = pytest.mark.long

FACTORS = {"half more": 1.5, "a third less": 1 / 1.5}
# For each file of tests: the group that it is about, and the sections of values that it holds.
HELD = {
    "loss": ("loss", ["non_finite", "loss_diverging"]),
    "attention": ("attention", ["bias", "deviation", "update_ratio", "replica_mismatch"]),
    "precursors": ("precursors", ["detectors", "precursors_agree"]),
    "trends": ("precursors", ["logit_forecast", "entropy_collapse"]),
    "fleet": ("fleet", ["stalled", "training_loop", "ranks_missing", "no_data", "run_id_shared"]),
    "monitor": ("monitor", ["coverage", "degraded", "overhead", "series_dropped"]),
}
NO_ALERTS = {"links", "receivers", "notifications", "verdict"}


def scaled(value: float | str, factor: float) -> float | str:
    if isinstance(value, str):
        (minutes,) = re.fullmatch(r"(\d+)m", value).groups()
        return f"{round(int(minutes) * 60 * factor)}s"
    return value * factor


def test_every_section_of_values_is_covered():
    assert {section for _, sections in HELD.values() for section in sections} == VALUES.keys() - NO_ALERTS


@needs["promtool"]
@pytest.mark.parametrize("name", HELD)
def test_changed_values_fail_the_rule_tests(tmp_path, name):
    of_group, sections = HELD[name]
    file = next(test for test in TESTS if test.stem == f"{name}_test")
    unchanged = promtool_tests(tmp_path / "unchanged", [group(of_group)], [file])
    assert unchanged.returncode == 0, unchanged.stdout + unchanged.stderr

    def survives(mutant: tuple[str, str, str]) -> str | None:
        section, key, how = mutant
        values = copy.deepcopy(VALUES)
        values[section][key] = scaled(VALUES[section][key], FACTORS[how])
        done = promtool_tests(tmp_path / "-".join(mutant), [group(of_group, values)], [file])
        told = done.stdout + done.stderr
        # Broken by what fires, not because the rules could not be read.
        return None if done.returncode == 1 and "got:" in told else f"{section}.{key}, {how}: {told[-500:]}"

    mutants = [(section, key, how) for section in sections for key in VALUES[section] for how in FACTORS]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert [told for told in pool.map(survives, mutants) if told] == []
