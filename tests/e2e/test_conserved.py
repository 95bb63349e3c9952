"""Gradients that are not the sum of what the backward passes contributed, in trainings of one and two ranks."""

import pathlib

import pytest
from monitored import PYTHON, Run, run_monitored, run_plain

SCRIPT = str(pathlib.Path(__file__).with_name("conserved_training.py"))
ONE = "blocks.1.up.weight: "
LONG = pytest.mark.long


def train(store: pathlib.Path, kind: str, ranks: int, *more: str) -> Run:
    run = run_monitored([PYTHON, SCRIPT, kind, str(ranks), str(store / "store"), *more], "--max-slowdown", "50%")
    run.told()
    assert run.summary is not None
    return run


def conditions(run: Run) -> list[str]:
    return [each["condition"] for each in run.summary["conditions"]]


@pytest.mark.parametrize(
    ("kind", "ranks", "condition", "text"),
    [
        ("ignored", 2, "gradient_not_summed", ONE + "the gradient used is that of its own rank only, the ranks were"),
        ("clears_all", 1, "gradient_last_only", "the gradient used is that of the last backward pass only, since step"),
        pytest.param("left_out", 2, "gradient_not_summed", ONE, marks=LONG),
        pytest.param("clears_one", 1, "gradient_last_only", ONE, marks=LONG),
        pytest.param("clears_one", 2, "gradient_last_only", ONE, marks=LONG),
        pytest.param("clears_all", 2, "gradient_last_only", "", marks=LONG),
        pytest.param("drops", 1, "gradient_dropped", ONE, marks=LONG),
        pytest.param("drops", 2, "gradient_dropped", ONE, marks=LONG),
        pytest.param("doubles", 1, "gradient_multiplied", ONE + "the gradient used is 2 times", marks=LONG),
        pytest.param("summed_twice", 2, "gradient_multiplied", ONE + "the gradient used is 2 times", marks=LONG),
        pytest.param("divided_twice", 2, "gradient_multiplied", ONE + "the gradient used is 0.5 times", marks=LONG),
        pytest.param("keeps_one", 1, "gradient_piled_up", ONE, marks=LONG),
        pytest.param("keeps_all", 1, "gradient_piled_up", "", marks=LONG),
        pytest.param("keeps_all", 2, "gradient_piled_up", "", marks=LONG),
    ],
)
def test_a_gradient_that_is_not_the_sum_of_its_contributions_is_named(tmp_path, kind, ranks, condition, text):
    run = train(tmp_path, kind, ranks)
    assert conditions(run) == [condition]
    assert text in run.summary["conditions"][0]["text"]
    assert run.summary["conditions"][0]["since_step"] in (2, 3)
    looks = run.of("gradient")
    assert {line["step"] for line in looks} == {2, 3, 5}
    assert all(line["whole"] for line in looks)


@pytest.mark.parametrize(
    ("kind", "ranks", "more"),
    [
        ("sound", 2, ()),
        pytest.param("sound", 1, (), marks=LONG),
        pytest.param("sound", 1, ("bf16",), marks=LONG),
        pytest.param("sound", 2, ("bf16",), marks=LONG),
        pytest.param("by_hand", 2, (), marks=LONG),
        pytest.param("masks", 1, (), marks=LONG),
        pytest.param("masks", 2, (), marks=LONG),
    ],
)
def test_a_sound_training_has_the_same_bits_and_no_condition(tmp_path, kind, ranks, more):
    run = train(tmp_path, kind, ranks, *more)
    assert conditions(run) == []
    assert len(run.of("gradient")) >= 3 * ranks * 20
    (tmp_path / "store").unlink(missing_ok=True)
    plain = run_plain([PYTHON, SCRIPT, kind, str(ranks), str(tmp_path / "store"), *more])
    assert sorted(map(str, run.told())) == sorted(map(str, plain.told()))
