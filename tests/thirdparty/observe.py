"""A pytest plugin: writes a line of JSON for each test, with what a user could see of it.

    pytest -p observe --observe FILE

Outcome of each phase, captured output, warnings, and by how much the test raised the peak of resident memory.
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest

# What differs between any two runs: addresses, durations and rates, temporary folders, process numbers.
CHANGING = (
    (re.compile(r"0x[0-9a-f]{6,}"), "0x"),
    (re.compile(r"\d+(\.\d+)?(e-?\d+)? ?(s|ms|us|it/s|s/it|seconds|MB|GB|GiB|MiB)\b"), "N"),
    (re.compile(r"\d\d:\d\d(:\d\d)?(\.\d+)?"), "T"),
    (re.compile(r"/tmp/[\w./-]+"), "/tmp/"),
    (re.compile(r"pid[ =:]+\d+"), "pid"),
)


def plain(text: str) -> list[str]:
    for pattern, word in CHANGING:
        text = pattern.sub(word, text)
    return text.splitlines()


def resident(name: str) -> int:
    """VmRSS or VmHWM of this process, in KiB."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+)", status)[1])  # type: ignore[index]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--observe", required=True)


class Observer:
    def __init__(self, path: str) -> None:
        self.path = pathlib.Path(path)
        self.tests: dict[str, dict[str, Any]] = {}
        self.before = 0

    def row(self, name: str) -> dict[str, Any]:
        return self.tests.setdefault(name, {"test": name, "outcome": [], "output": [], "warnings": [], "peak_kib": 0})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins at what is resident now
        before = resident("VmRSS")
        try:
            return (yield)
        finally:
            row = self.row(item.nodeid)
            row["peak_kib"] = max(resident("VmHWM") - before, 0)
            with self.path.open("a") as file:
                file.write(json.dumps(self.tests.pop(item.nodeid)) + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self.row(report.nodeid)
        row["outcome"].append(report.outcome)
        if report.when == "teardown":
            row["output"] = [line for _, text in report.sections for line in plain(text)]
        if report.failed:
            row["failure"] = plain(str(report.longrepr))[-1:]

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        if nodeid:
            text = f"{warning_message.category.__name__}: {warning_message.message}"
            self.row(nodeid)["warnings"].extend(plain(text))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Observer(config.getoption("--observe")))
