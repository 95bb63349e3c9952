"""Gradients that are not the sum of what the backward passes contributed: the trainings of bench/gradients.py."""

import pathlib
import sys

import pytest
from forked import forked
from monitored import run_plain

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from gradients import MECHANISMS, TRAINING, result_of, train

LONG = pytest.mark.long
SHORT = ("ignored", "clears_all", "tensor_router", "shards_drops", "zero_drops")  # the kinds that are not long


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param(each, id=each.kind, marks=() if each.kind in SHORT else LONG) for each in MECHANISMS],
)
def test_a_gradient_that_is_not_the_sum_of_its_contributions_is_named(mechanism):
    run = train(mechanism.kind, mechanism.ranks)
    conditions, text, judged = result_of(run)
    assert conditions == ([mechanism.condition] if mechanism.condition else [])
    assert mechanism.text in text
    assert judged.startswith("0 looks judged of") == (
        mechanism.twin in ("tensor", "grid", "plane")  # contributions are not seen
    )
    if conditions:
        assert run.summary["conditions"][0]["since_step"] in (2, 3)
    # ZeroRedundancyOptimizer has its first look later.
    assert {line["step"] for line in run.of("gradient")} == {2, 3, 5} - ({2} if mechanism.kind[:4] == "zero" else set())


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
        pytest.param("shards", 2, (), marks=LONG),
        pytest.param("tensor", 2, (), marks=LONG),
        pytest.param("grid", 4, (), marks=LONG),
        pytest.param("plane", 4, (), marks=LONG),
        pytest.param("hybrid", 4, (), marks=LONG),
        pytest.param("zero", 2, (), marks=LONG),
        pytest.param("experts", 2, (), marks=LONG),
    ],
)
def test_a_sound_training_has_the_same_bits_and_no_condition(tmp_path, kind, ranks, more):
    run = train(kind, ranks, *more)
    assert result_of(run)[0] == []
    assert len(run.of("gradient")) >= 3 * ranks * 10
    plain = run_plain(forked(str(TRAINING), kind, str(ranks), str(tmp_path / "store"), *more))
    assert sorted(map(str, run.told())) == sorted(map(str, plain.told()))
