"""The rules of dashboards/ as their generator makes them from any values, and promtool's tests of them."""

import pathlib
import shutil
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "dashboards"
sys.path.insert(0, str(DASHBOARDS))

import detector_rules  # noqa: E402, F401
import rules  # noqa: E402
from rule import Alert, Group, Values, yaml_of  # noqa: E402

VALUES: Values = tomllib.loads((DASHBOARDS / "values.toml").read_text())
# Of the tests, whatever the bench says today: the detectors that they take for proven.
DEFAULT = frozenset({"output_error_drift", "gradient_growth", "max_logit", "weight_shift"})
TESTS = sorted((DASHBOARDS / "rules" / "tests").glob("*_test.yml"))


def alerts(values: Values = VALUES) -> list[Alert]:
    return rules.alerts(values)


def group(name: str, values: Values = VALUES) -> Group:
    return next(each for each in rules.groups(values, DEFAULT) if each.name == f"foreshock-{name}")


def promtool_tests(
    folder: pathlib.Path, groups: list[Group], tests: list[pathlib.Path], promtool: str = "promtool"
) -> subprocess.CompletedProcess:
    """`promtool test rules` of `tests` on these groups, written below `folder`, which is new or used before."""
    (folder / "tests").mkdir(parents=True, exist_ok=True)
    (folder / "foreshock.yml").write_text(yaml_of(groups, VALUES["links"]))
    for file in tests:
        shutil.copy(file, folder / "tests")
    command = [promtool, "test", "rules", *(file.name for file in tests)]
    return subprocess.run(command, cwd=folder / "tests", capture_output=True, text=True)
