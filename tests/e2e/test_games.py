"""Optimizers that take turns, each on a loss of its own: the losses of sound games are no fault, a NaN is."""

import pathlib

import pytest
from monitored import PYTHON, Run, run_monitored, unwrapped

pytestmark = pytest.mark.long

SCRIPT = str(pathlib.Path(__file__).with_name("game_training.py"))
KINDS = ("dcgan", "lsgan", "wgan_clip", "wgan_gp", "hinge", "actor_critic", "alternating")


def train(kind: str, *arguments: object) -> Run:
    run = run_monitored([PYTHON, SCRIPT, kind, *map(str, arguments)], "--max-slowdown", "50%")
    assert run.returncode == 0, run.stderr
    assert run.summary is not None
    return run


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_losses_of_a_sound_game_are_no_fault(kind, seed):
    run = train(kind, seed, 400)
    assert "healthy" in unwrapped(run.summary["text"].partition("attention ")[0]), run.stderr
    assert run.summary["findings"] == []
    assert [each["condition"] for each in run.summary["conditions"]] == []
    assert any("loss of optimizer 2" in (line["logged"] or {}) for line in run.of("step"))
    assert "not judged: optimizers take turns" in unwrapped(run.stderr)


@pytest.mark.parametrize("kind", ["dcgan", "wgan_clip"])
def test_a_nan_in_one_of_two_losses_is_found(kind):
    run = train(kind, 1, 90, "nan")
    (event,) = [line for line in run.of("event") if line["event"] == "divergence"]
    assert 60 < event["step"] <= 66
    assert "LOSS DIVERGED" in run.stderr
    assert "loss of optimizer 2 diverged at step" in unwrapped(run.stderr)
