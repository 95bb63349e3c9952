"""Names every test of each tier, for `./dev test --list`.

Of ctest: the cases of each GoogleTest program, which is run to list them, and every other test by its name.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Iterator


def output(*command: str | pathlib.Path, cwd: pathlib.Path) -> str:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


def gtest_cases(listing: str) -> Iterator[str]:
    """The cases in what a program prints for --gtest_list_tests: a line for each suite, its cases indented."""
    suite = ""
    for line in listing.splitlines():
        name = line.partition("#")[0].rstrip()
        if name.startswith("  "):
            yield suite + name.strip()
        elif name.endswith("."):
            suite = name


def ctest_names(build: pathlib.Path, *options: str) -> set[str]:
    names = set()
    for test in json.loads(output("ctest", "--show-only=json-v1", *options, cwd=build))["tests"]:
        command = test["command"]
        if any(word.startswith("--gtest_output") for word in command):
            cases = gtest_cases(output(command[0], "--gtest_list_tests", cwd=build))
            names |= {f"{pathlib.Path(command[0]).name} {case}" for case in cases}
        else:
            names.add(test["name"])
    return names


def pytest_names(python: pathlib.Path, root: pathlib.Path, *options: str) -> set[str]:
    listing = output(
        python,
        "-m",
        "pytest",
        "tests",
        "--collect-only",
        "-o",
        "addopts=--import-mode=importlib",
        "-q",
        *options,
        cwd=root,
    )
    return {line for line in listing.splitlines() if "::" in line}


def by_first_tier(tiers: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    """`tiers`: the names of each, the smallest tier first. A later tier must have all of an earlier one."""
    seen: set[str] = set()
    for tier, names in tiers.items():
        missing = seen - names
        assert not missing, f"not in the tier {tier}, but in one before it: {sorted(missing)}"
        yield from ((tier, name) for name in sorted(names - seen))
        seen |= names
