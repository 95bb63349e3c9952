"""Many trainings in one process: no layer is called as one of a model that is gone."""

from pathlib import Path

from forked import forked
from monitored import EVERYTHING, assert_conserved, run_monitored

TRAINING = str(Path(__file__).with_name("sweep_training.py"))


def test_no_sample_bears_a_name_that_is_not_its_own():
    run = run_monitored(forked(TRAINING), *EVERYTHING)
    (told,) = run.told()
    assert_conserved(run.rank())
    samples = sorted((s for s in run.of("sample") if s["pass"] == "forward"), key=lambda s: s["ticket"])
    assert len(samples) > 200  # on a busy machine slots are full at times
    # As its place among the calls of its step says: they are called in the order of their numbers.
    named = [sample for sample in samples if sample["layer"] is not None]
    wrong = [(s["ticket"], s["call"], s["layer"]) for s in named if s["layer"] != f"{s['call']:03d}"]
    # Ten trainings of two layers or more, whose names are known from the end of their first of four steps on.
    assert len(named) >= 10 * 2 * 3
    assert not wrong, (len(wrong), len(named), wrong[:5])
    assert {f"{sample['call']:03d}" for sample in samples} <= set(told["called"])
