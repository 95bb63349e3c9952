"""For every test: where the support modules are, a base directory, the hand trainer, the command line."""

# The pytest of Debian, under which other releases of torch are tested, lacks names of the annotations.
from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "support"))

import browser  # noqa: E402
import live  # noqa: E402
import monitored  # noqa: E402
import reports  # noqa: E402

# Children inherit ignored signals (nohup ignores SIGHUP, a shell in the background SIGINT), but get the default where
# this process has a handler. The tests expect the default.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    times = os.times()
    return sum(times[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item):
    item.stash[CPU_BEFORE] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item):
    try:
        return (yield)
    finally:
        item.user_properties.append((reports.CPU, round(cpu_seconds() - item.stash[CPU_BEFORE], 2)))


CPU_BEFORE = pytest.StashKey[float]()
LINE_OF = "line of "  # a property of a test, which also reaches us from the processes of pytest-xdist


@pytest.fixture
def show_line(record_property: Callable[[str, object], None]) -> Callable[[str, str], None]:
    """show_line(table, line): what a test has measured, a line in a table at the end of the tests."""
    return lambda table, line: record_property(LINE_OF + table, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tables: dict[str, list[str]] = {}
    for finished in terminalreporter.stats.values():
        for report in finished:
            if getattr(report, "when", None) != "call":
                continue
            for name, line in report.user_properties:
                if name.startswith(LINE_OF):
                    tables.setdefault(name.removeprefix(LINE_OF), []).append(line)
    for table, lines in sorted(tables.items()):
        terminalreporter.section(table)
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def base():
    """A private base directory on tmpfs, gone at the end."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def tab():
    """A real browser, where there is one."""
    if browser.EXECUTABLE is None:
        pytest.skip("no chromium here")
    one = browser.Browser()
    yield one
    one.close()


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
