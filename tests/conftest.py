"""For every test: where the support modules are, a base directory, the hand trainer, the command line."""

import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "support"))

import live  # noqa: E402
import monitored  # noqa: E402

# A shell that starts the tests in the background leaves Ctrl-C ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def base():
    """A private base directory on tmpfs, gone at the end."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def hand_library(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return live.build_hand_library(tmp_path_factory.mktemp("hand"))


@pytest.fixture
def foreshock(base):
    """foreshock(*arguments): the command line on this test's base directory; the finished process."""

    def call(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(monitored.FORESHOCK), *arguments],
            env=monitored.clean_environment(FORESHOCK_DIR=str(base)),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return call
