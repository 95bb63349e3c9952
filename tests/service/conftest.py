"""An agent that serves a tree of runs, and trainers of several users below it."""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import live
import monitored
import pytest
from scraping import ended
from service import SYSTEM_PYTHON, Service


@pytest.fixture
def tree() -> Iterator[pathlib.Path]:
    path = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-tree-", dir="/dev/shm"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def start_service(tree, tmp_path):
    with contextlib.ExitStack() as stack:

        def start(*options: str, folder: pathlib.Path = tmp_path, **more: object) -> Service:
            service = Service(tree, folder, *options, **more)
            stack.enter_context(ended(service.process))
            return service

        yield start


@pytest.fixture
def service(start_service) -> Service:
    return start_service()


@pytest.fixture
def start_trainer(tree, hand_library):
    """start_trainer(user, run id, uid): a hand trainer under `foreshock run --agent service`."""
    started, shared = [], tree / "libhand.so"
    shutil.copy(hand_library, shared)

    def start(user: str, run_id: str, *options: str, uid: int | None = None, **environment: str) -> live.Live:
        base = tree / user
        if not base.exists():
            base.mkdir(mode=0o700)
            if uid is not None:
                os.chown(base, uid, uid)
        # Another user can often not read the interpreter of the tests.
        python = monitored.PYTHON if uid is None else SYSTEM_PYTHON
        script = f"exec {python} {live.__file__}"
        command = [str(monitored.FORESHOCK), "run", "--preload", "--agent", "service", "--run-id", run_id]
        given = monitored.clean_environment(FORESHOCK_DIR=str(base), HAND_LIBRARY=str(shared))
        who = {} if uid is None else {"user": uid, "group": uid, "extra_groups": [], "cwd": "/"}
        trainer = live.Live(
            [*command, *monitored.EVERYTHING, *options, "--", "sh", "-c", script], given | environment, **who
        )
        started.append(trainer)
        return trainer

    yield start
    for trainer in started:
        trainer.finish()
