"""What the tests of the whole path share: the support modules, and trainers that live while a test looks."""

import pathlib
import shutil
import sys
import tempfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

import live  # noqa: E402
import monitored  # noqa: E402


@pytest.fixture(scope="session")
def hand_library(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return live.build_hand_library(tmp_path_factory.mktemp("hand"))


@pytest.fixture
def base():
    """A private base directory on tmpfs."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-e2e-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def start_hand(base, hand_library, tmp_path):
    """start_hand(run_id, *options, **environment): under `foreshock run`, a trainer that does what the test says.

    It has no framework. Its summary will be in `.summary`, its record in `.record`.
    """
    started = []

    def start(run_id: str, *options: str, port: int = 0, **environment: str) -> live.Live:
        summary, record = (tmp_path / f"{len(started)}.{ending}" for ending in ("json", "jsonl"))
        command = [str(monitored.FORESHOCK), "run", "--run-id", run_id, "--port", str(port), "--summary", str(summary)]
        command += ["--record", str(record), *monitored.EVERYTHING, *options, "--", monitored.PYTHON, live.__file__]
        given = monitored.clean_environment(FORESHOCK_DIR=str(base), HAND_LIBRARY=str(hand_library))
        trainer = live.Live(command, given | environment)
        trainer.summary, trainer.record = summary, record
        started.append(trainer)
        return trainer

    yield start
    for trainer in started:
        trainer.finish()


@pytest.fixture
def foreshock(base):
    """foreshock(*arguments): the command line on this test's base directory; the finished process."""
    import subprocess

    def call(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(monitored.FORESHOCK), *arguments],
            env=monitored.clean_environment(FORESHOCK_DIR=str(base)),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return call
