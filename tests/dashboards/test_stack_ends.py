"""Whatever ends `./dev stack`, nothing that it started lives on."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import monitored
import pytest
from alert_rules import DASHBOARDS
from scraping import needs, wait_until
from stack import end, held_signals

pytestmark = pytest.mark.long

both = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
SLEEPING = [sys.executable, "-c", "import time; time.sleep(300)"]


def command_lines(folder: pathlib.Path) -> dict[int, str]:
    """The living processes with this folder in their command line: the stack and all that it starts has it there."""
    found = {}
    for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in words:
                found[int(file.parent.name)] = words
    return found


@pytest.fixture
def start(tmp_path, base):
    """start(training, *options): the stack, and a function that finds what of it lives, by a part of its command."""
    folder = tmp_path / "stack"

    def begin(training: list[str], *options: str) -> tuple[subprocess.Popen, pathlib.Path]:
        command = [
            sys.executable,
            str(DASHBOARDS / "stack.py"),
            "--interval",
            "1",
            "--folder",
            str(folder),
            *options,
            "--",
            *training,
        ]
        environment = monitored.clean_environment(FORESHOCK_DIR=str(base), FORESHOCK_BUILD=str(monitored.BUILD))
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True), folder

    yield begin
    for pid in command_lines(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for_process(folder: pathlib.Path, part: str, of: subprocess.Popen) -> None:
    wait_until(lambda: any(part in words for pid, words in command_lines(folder).items() if pid != of.pid), of=of)


def ends_with(process: subprocess.Popen, number: int, folder: pathlib.Path) -> None:
    process.send_signal(number)
    assert process.wait(timeout=60) == 128 + number
    assert command_lines(folder) == {}


@pytest.mark.parametrize("begun", ["prometheus-alertmanager --", "prometheus --"])
@both
@needs["prometheus-alertmanager"]
@needs["prometheus"]
def test_a_signal_while_the_servers_start_ends_them(start, number, begun):
    process, folder = start(SLEEPING)
    wait_for_process(folder, begun, process)
    ends_with(process, number, folder)


@both
@needs["prometheus-alertmanager"]
@needs["prometheus"]
def test_a_signal_ends_the_training_and_the_servers(start, tmp_path, number):
    process, folder = start([*SLEEPING, str(tmp_path / "stack")])
    wait_for_process(folder, " ".join(SLEEPING), process)
    ends_with(process, number, folder)


@both
@needs["prometheus-alertmanager"]
@needs["prometheus"]
def test_a_signal_ends_the_servers_that_stay_after_the_training(start, number):
    process, folder = start(["true"], "--stay")
    assert any("the training has ended" in line for line in process.stdout)
    assert any("prometheus --" in words for words in command_lines(folder).values())
    ends_with(process, number, folder)


SLOW_TO_END = """
import time
try:
    print("it trains", flush=True)
    time.sleep(300)
except KeyboardInterrupt:
    print("it ends", flush=True)
    time.sleep(2)
"""


@needs["prometheus-alertmanager"]
@needs["prometheus"]
def test_a_second_signal_does_not_interrupt_the_ending(start, tmp_path):
    process, folder = start([sys.executable, "-c", SLOW_TO_END, str(tmp_path / "stack")])
    assert any("it trains" in line for line in process.stdout)
    process.send_signal(signal.SIGTERM)
    assert any("it ends" in line for line in process.stdout)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert command_lines(folder) == {}


STUBBORN = """
import signal, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def stubborn():
    """A process that neither Ctrl-C nor SIGTERM ends."""
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_a_process_that_ignores_sigterm_is_killed(stubborn, monkeypatch):
    monkeypatch.setattr("stack.TIMEOUT_S", 0.2)
    end(stubborn, signal.SIGINT, signal.SIGTERM)
    assert stubborn.returncode == -signal.SIGKILL


def test_a_process_that_ends_gets_one_signal():
    process = subprocess.Popen(SLEEPING)
    end(process, signal.SIGTERM, signal.SIGKILL)
    assert process.returncode == -signal.SIGTERM


def test_ctrl_c_during_the_wait_kills(stubborn, monkeypatch):
    monkeypatch.setattr(stubborn, "wait", lambda **_: [monkeypatch.undo(), signal.raise_signal(signal.SIGINT)])
    with pytest.raises(KeyboardInterrupt):
        end(stubborn, signal.SIGTERM)
    assert stubborn.poll() == -signal.SIGKILL


def test_a_signal_waits_until_a_process_that_starts_is_known():
    known = []

    def begin() -> None:
        with held_signals():
            signal.raise_signal(signal.SIGINT)
            known.append("process")

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert known == ["process"]
