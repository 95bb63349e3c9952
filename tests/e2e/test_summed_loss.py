"""The loss of a training that sums its cross-entropy over the targets: the roots may be shares of it."""

import pathlib

import pytest
from forked import forked
from monitored import EVERYTHING, Run, run_monitored, run_plain
from tiers import keep

SCRIPT = pathlib.Path(__file__).with_name("summed_training.py")


def trained(*words: str) -> Run:
    """The monitored run, after it gave the bits of a plain one."""
    command, support = forked(str(SCRIPT), *words), str(SCRIPT.parents[1] / "support")
    plain = run_plain(command, PYTHONPATH=support)
    run = run_monitored(command, *EVERYTHING, PYTHONPATH=support)
    assert plain.told() == run.told()
    return run


def published(run: Run, source: str) -> list[float | None]:
    steps = run.of("step")
    assert {step["loss_source"] for step in steps if step["loss"] is not None} == {source}
    assert run.rank()["loss"]["source"] == source
    return [step["loss"] for step in steps]


@pytest.mark.parametrize(
    "words",
    keep([("accumulate",), ("accumulate", "pieces"), ("accumulate", "auxiliary")], ("accumulate", "pieces")),
    ids=" ".join,
)
def test_shares_of_a_step_are_added(words) -> None:
    run = trained(*words)
    told = run.told()[0]
    losses = published(run, "backward_root")
    assert losses == told["roots"]
    # The mean over all targets: pieces are added three times in fp32 and divided once, 2^-24 each.
    if "auxiliary" not in words:
        assert losses == pytest.approx(told["means"], rel=4 * 2**-24)


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("plain",), ("auxiliary",)], ids=" ".join)
def test_the_root_of_one_pass_is_the_loss(words) -> None:
    run = trained(*words)
    assert published(run, "backward_root") == run.told()[0]["roots"]


@pytest.mark.long
def test_roots_that_are_no_shares_are_averaged() -> None:
    run = trained("accumulate", "plain")
    assert published(run, "backward_root") == [total / 3 for total in run.told()[0]["roots"]]


def test_through_a_gradient_scaler() -> None:
    """The mean over all targets. In the first step nobody knows yet whether the root is a multiple."""
    run = trained("accumulate", "scaler")
    assert published(run, "nll") == [None, *run.told()[0]["means"][1:]]
