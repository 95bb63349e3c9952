"""What the tests of the whole path share: the support modules, and trainers that live while a test looks."""

import pathlib

import live
import monitored
import pytest


@pytest.fixture
def start_hand(base, hand_library, tmp_path):
    """start_hand(run_id, *options, **environment): under `foreshock run`, a trainer that does what the test says.

    It has no framework, hence --preload. Its summary will be in `.summary`, its record in `.record`. `foreshock`: the
    command, if not that of the build.
    """
    started = []

    def start(
        run_id: str,
        *options: str,
        port: int = 0,
        foreshock: pathlib.Path = monitored.FORESHOCK,
        **environment: str,
    ) -> live.Live:
        summary, record = (tmp_path / f"{len(started)}.{ending}" for ending in ("json", "jsonl"))
        command = [str(foreshock), "run", "--preload", "--run-id", run_id, "--port", str(port)]
        command += [
            "--summary",
            str(summary),
            "--record",
            str(record),
            *monitored.EVERYTHING,
            *options,
            "--",
            monitored.PYTHON,
            live.__file__,
        ]
        given = monitored.clean_environment(FORESHOCK_DIR=str(base), HAND_LIBRARY=str(hand_library))
        trainer = live.Live(command, given | environment)
        trainer.summary, trainer.record = summary, record
        started.append(trainer)
        return trainer

    yield start
    for trainer in started:
        trainer.finish()
