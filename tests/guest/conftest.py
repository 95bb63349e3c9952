"""Fixtures of the guest tests: trainers under `foreshock run`, and trainers with a run directory but no agent."""

import os

import live
import monitored
import pytest


@pytest.fixture
def without_agent(base, hand_library):
    """The environment `foreshock run` would give a trainer, with a run directory that nobody serves."""
    (base / "alone").mkdir(mode=0o700)
    return monitored.clean_environment(
        LD_PRELOAD=str(monitored.LIBRARY),
        PYTHONPATH=str(monitored.BUILD / "share" / "foreshock" / "python"),
        FORESHOCK_DIR=str(base),
        FORESHOCK_RUN_ID="alone",
        HAND_LIBRARY=str(hand_library),
    )


@pytest.fixture
def start_alone(base, without_agent):
    """start_alone(**environment): a Live trainer without an agent. Its files are in base / "alone"."""
    started = []

    def start(**environment: str) -> live.Live:
        started.append(live.Live([monitored.PYTHON, live.__file__], without_agent | environment))
        return started[-1]

    yield start
    for trainer in started:
        trainer.finish()


@pytest.fixture
def start_run(base, hand_library, tmp_path):
    """start_run(*options, **environment): a Live trainer under `foreshock run --run-id me`; `.summary` is its file.

    With --preload, since a hand trainer never imports torch.
    """
    started = []

    def start(*options: str, prefix: tuple[str, ...] = (), **environment: str) -> live.Live:
        summary = tmp_path / f"summary{len(started)}.json"
        command = [*prefix, str(monitored.FORESHOCK), "run", "--preload", "--run-id", "me", "--port", "0"]
        command += ["--summary", str(summary), *options, "--", monitored.PYTHON, live.__file__]
        given = monitored.clean_environment(FORESHOCK_DIR=str(base), HAND_LIBRARY=str(hand_library))
        trainer = live.Live(command, given | environment)
        trainer.summary = summary
        started.append(trainer)
        return trainer

    yield start
    for trainer in started:
        trainer.finish()


@pytest.fixture
def needs_root():
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs of its own needs root")
