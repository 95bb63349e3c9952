"""The axis of steps, of a run that stands still, goes back and is away: what can be drawn, and the run is made of."""

import pathlib
import random
import subprocess
import sys

import pytest
import yaml
from alert_rules import DASHBOARDS
from scraping import needs

sys.path.insert(0, str(DASHBOARDS))
import panel  # noqa: E402

pytestmark = pytest.mark.long

MINUTES = 40
Steps = list[int | None]


def filled(expression: str, last: int) -> str:
    """As Grafana fills it in for a panel of all minutes up to the last, one point a minute."""
    chosen = {"$__range": f"{last + 1}m", "$__interval": "1m", "${__to}": str(last * 60000)}
    for name, value in (chosen | {"$cluster": "", "$namespace": "", "$run": "me"}).items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def kept(steps: Steps, last: int) -> dict[int, int]:
    """Minute and step, by the definition: no later one of the panel is as small."""
    ends = {}
    for minute, step in enumerate(steps[: last + 1]):
        later = [each for each in steps[minute + 1 : last + 1] if each is not None]
        if step is not None and all(each > step for each in later):
            ends[minute] = step
    return ends


def training(seed: int) -> Steps:
    """Steps as they are seen each minute: slow and quick ones, evaluations, crashes with what is done again."""
    dice, step, steps = random.Random(seed), 0, []
    while len(steps) < MINUTES:
        happens = dice.choice(["trains", "trains", "trains", "evaluates", "crashes", "is away"])
        for _ in range(dice.randint(1, 5)):
            step += dice.choice([1, 2, 500]) if happens == "trains" else 0
            steps.append(None if happens == "is away" else step)
        if happens == "crashes":
            step = max(0, step - dice.choice([0, 1, 3, 700]))
    return [0, *steps[: MINUTES - 2], step + 1]


def shows(folder: pathlib.Path, steps: Steps, last: int, expression: str, expected: dict[int, int]) -> str:
    """What promtool finds wrong; empty when the expression has the expected value in each minute."""
    samples = " ".join("stale" if step is None else str(step) for step in steps)
    cases = [
        {
            "expr": filled(expression, last),
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": "{}", "value": expected[minute]}] if minute in expected else [],
        }
        for minute in range(last + 1)
    ]
    of_ranks = [{"series": f'foreshock_step{{run="me",rank="{n}"}}', "values": samples} for n in range(2)]
    test = {"interval": "1m", "input_series": of_ranks, "promql_expr_test": cases}
    file = folder / "steps.yml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


@needs["promtool"]
@pytest.mark.parametrize("seed", range(8))
def test_the_step_axis_ascends_over_the_final_history(tmp_path, seed):
    steps = training(seed)
    for last in (MINUTES - 1, MINUTES // 2):  # a panel that ends before what comes later shows what was then
        expected = kept(steps, last)
        drawn = list(expected.values())
        assert drawn == sorted(set(drawn))
        assert shows(tmp_path, steps, last, panel.ASCENDING, expected) == ""


@needs["promtool"]
def test_raw_steps_do_not_ascend(tmp_path):
    steps = [1, 2, 2, 3, 2, 3, 4, None, 5, 5]
    assert kept(steps, 9) == {4: 2, 5: 3, 6: 4, 9: 5, 0: 1}
    assert shows(tmp_path, steps, 9, panel.STEP, kept(steps, 9)) != ""
    assert shows(tmp_path, steps, 9, panel.ASCENDING, kept(steps, 9)) == ""


@needs["promtool"]
def test_steps_of_ten_digits_are_distinguished(tmp_path):
    """The millionth for each second is above the spacing of doubles there, and below a step in eleven days."""
    steps = [1_000_000_000] * 3 + [1_000_000_001] * 3
    assert shows(tmp_path, steps, 5, panel.ASCENDING, {2: steps[2], 5: steps[5]}) == ""
