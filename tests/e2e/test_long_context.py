"""Slices that are larger than a slot: attention over 32 and 128 thousand keys is judged like any other."""

import pathlib

import pytest
from monitored import EVERYTHING, PYTHON, Run, assert_conserved, run_monitored

SCRIPT = pathlib.Path(__file__).with_name("long_training.py")
SUPPORT = str(SCRIPT.parents[1] / "support")
# Told by the clock, or by the order in which slices found their slots.
OF_THE_RUN = {"run", "ticket", "time", "step_judged", "judge_seconds"}


def train(keys: str, memory: str) -> Run:
    run = run_monitored([PYTHON, str(SCRIPT), keys], "--memory", memory, *EVERYTHING, PYTHONPATH=SUPPORT)
    run.told()
    assert_conserved(run.rank())
    return run


def samples(run: Run) -> dict[tuple, dict]:
    return {(line["step"], line["call"], line["tensor"]): line for line in run.of("sample")}


@pytest.mark.long  # tests/segment/split_slice_test.cpp shows how a slice crosses in several slots
def test_long_contexts_are_judged():
    run = train("32768,131072", "64MiB")
    for which in ("forward", "backward"):
        of = run.rank()["attention"][which]
        assert of["judged"] == of["sampled"] > 0, of
        assert all(count == 0 for reason, count in of["skipped"].items() if reason != "ring_full"), of
        for keys in (32768, 131072):
            of_keys = [line for line in run.of_rows() if line["pass"] == which and line["keys"] == keys]
            assert of_keys, (which, keys)
            # The bounds of test_numbers.py for the forward in 16 bits. The backward's error grows with the root of
            # the number of keys, 2.0 at 32768 and 3.8 at 131072, as the sum over blocks of keys does that is rounded
            # to 16 bits after each; the same in one slot (below). A part in the wrong place would be hundreds.
            most = 1.3 if which == "forward" else 6
            ratios = [line["deviation_ratio"] for line in of_keys]
            if which == "backward":  # none where the error is that of a row or two
                ratios = [ratio for ratio in ratios if ratio is not None]
            assert ratios, of_keys
            assert all(0.3 < ratio < most for ratio in ratios), of_keys


@pytest.mark.long
def test_what_is_found_does_not_depend_on_the_split():
    split, whole = train("32768", "64MiB"), train("32768", "128MiB")
    (of_split, of_whole) = (next(line for line in run.of("run"))["slot_bytes"] for run in (split, whole))
    slice_bytes = 32768 * 64 * 2 * 2
    assert of_split < slice_bytes < of_whole
    compared = 0
    for place, line in samples(split).items():
        other = samples(whole).get(place)
        if other is None:
            continue
        compared += 1
        assert {k: v for k, v in line.items() if k not in OF_THE_RUN} == {
            k: v for k, v in other.items() if k not in OF_THE_RUN
        }
    assert compared >= 2


@pytest.mark.long
def test_what_the_memory_cannot_hold_is_counted():
    rank = train("65536", "8MiB").rank()
    for of in rank["attention"].values():
        assert of["sampled"] == 0
        assert of["skipped"]["too_large"] == of["calls"] - of["unsampled"] > 0, of
    # Key positions are taken beside a slice of rows, so there are none here.
    assert rank["key_gradients"]["judged"] == 0
