"""Reads the JUnit reports of a test run: which tests failed, and where the time went.

ctest reports a GoogleTest program as one test; `expand_gtest` puts the cases of GoogleTest's own report in its place.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import re
import xml.etree.ElementTree
from collections.abc import Iterable, Iterator

CPU = "cpu seconds"  # a property of a test of pytest, see tests/conftest.py


@dataclasses.dataclass
class Case:
    """One test of a report. `problem` is the first line of its failure, and None if it did not fail."""

    folder: str
    name: str
    seconds: float
    cpu: float
    problem: str | None


def folder_of(case: xml.etree.ElementTree.Element) -> str:
    """The folder of tests/ that a test belongs to."""
    source = re.search(r"\btests[/.](\w+)[/.]", f"{case.get('file', '')} {case.get('classname', '')}.")
    return source.group(1) if source else "ctest"


def read_cases(report: pathlib.Path) -> Iterator[Case]:
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        problems = [*case.iter("failure"), *case.iter("error")]
        problem = problems[0].get("message", "").partition("\n")[0][:200] if problems else None
        seconds = float(case.get("time", 0))
        cpu = [float(each.get("value", 0)) for each in case.iter("property") if each.get("name") == CPU]
        name = " ".join(filter(None, [case.get("classname"), case.get("name")]))
        yield Case(folder_of(case), name, seconds, cpu[0] if cpu else seconds, problem)


def last_case_begun(output: str) -> str:
    begun = re.findall(r"^\[ RUN +\] (\S+)", output, re.MULTILINE)
    return begun[-1] if begun else ""


def expand_gtest(report: pathlib.Path, gtest: pathlib.Path) -> None:
    """Replaces each program in ctest's `report` by the cases that it reported below `gtest`.

    A program that failed without reporting a failed case (it crashed, or ran too long) is kept, and its failure names
    the case that was running.
    """
    tree = xml.etree.ElementTree.parse(report)
    suite = tree.getroot()
    for program in list(suite.iter("testcase")):
        own = next(gtest.rglob(f"{program.get('name')}.xml"), None)
        cases = list(xml.etree.ElementTree.parse(own).iter("testcase")) if own else []
        for case in cases:
            case.set("name", f"{case.get('classname')}.{case.get('name')}")
            case.set("classname", str(program.get("name")))
        failed = list(program.iter("failure"))
        if failed and not any(True for case in cases for _ in case.iter("failure")):
            case = last_case_begun(program.findtext("system-out") or "")
            failed[0].set("message", f"{failed[0].get('message', '')} in {case}" if case else "failed")
        elif cases:
            suite.remove(program)
        suite.extend(cases)
    tree.write(report)


def gtest_cases(found: Iterable[pathlib.Path]) -> set[str]:
    """The cases in reports of GoogleTest, with the file that each is in: two programs may have one of the same name."""
    cases = [case for each in found for case in xml.etree.ElementTree.parse(each).iter("testcase")]
    return {f"{case.get('file')} {case.get('classname')}.{case.get('name')}" for case in cases}


def failures(report: pathlib.Path) -> list[str]:
    return [f"{case.name} {case.problem}".rstrip() for case in read_cases(report) if case.problem is not None]


def table_of_times(reports: Iterable[pathlib.Path], slowest: int = 50) -> list[str]:
    """Seconds of each folder and of the slowest tests, the longest first. CPU counts the processes that a test started
    and waited for; a case of GoogleTest has its seconds there."""
    cases = [case for report in reports for case in read_cases(report)]
    folders = collections.defaultdict(list)
    for case in cases:
        folders[case.folder].append(case)
    rows = [("folder", "tests", "seconds", "CPU s")]
    for name, those in sorted(folders.items(), key=lambda item: -sum(case.seconds for case in item[1])):
        rows.append((name, str(len(those)), f"{sum(c.seconds for c in those):.0f}", f"{sum(c.cpu for c in those):.0f}"))
    rows.append(("all", str(len(cases)), f"{sum(c.seconds for c in cases):.0f}", f"{sum(c.cpu for c in cases):.0f}"))
    lines = [f"{name:14} {tests:>6} {seconds:>9} {cpu:>7}" for name, tests, seconds, cpu in rows]
    lines += ["", f"{'seconds':>8} {'CPU s':>7}  test"]
    for case in sorted(cases, key=lambda case: -case.seconds)[:slowest]:
        lines.append(f"{case.seconds:8.1f} {case.cpu:7.1f}  {case.name}")
    return lines
