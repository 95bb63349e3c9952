"""A module is a header and the sources of its name: one idea, of some size, used by others, in an order.

The tables below excuse what breaks a rule, with the reason. An excuse that is not needed any more fails too.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
from collections import defaultdict

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEAST_LINES = 60
CODE = {".h", ".cpp", ".cu", ".cuh", ".c", ".py", ".js"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([\w./-]+)[">]', re.MULTILINE)
ORDERED = ("agent", "cli", "detect", "exporters", "kernels", "lab", "libmonitor", "segment", "shadow")

OF_A_BUILD = "compiled or included by the build in another way than its neighbours"
OF_A_PROGRAM = "a program or a page of its own"
OF_PYTHON = "one idea of the helper that nothing else shares"
SMALL = {
    "agent/log_library": "compiles a library of others once",
    "cli/commands": "the list of commands",
    "packaging/glibc_2_31": OF_A_BUILD,
    "cli/report/words": OF_A_PROGRAM,
    "dashboards/alertmanager": OF_A_PROGRAM,
    "dashboards/generate": OF_A_PROGRAM,
    "dashboards/rules": "puts the groups of rules together",
    "dashboards/standing": "the terms that all boards share",
    "exporters/status_page/grafana": OF_A_PROGRAM,
    "segment/key_window": "which keys a query sees, for trainer and agent",
    "integrations/torch/interpreter": "finds the interpreter, where there is one",
    "integrations/torch/older_runtime": OF_A_BUILD,
    "integrations/torch/python/foreshock_torch/__init__": "what Python loads first",
    "integrations/torch/python/foreshock_torch/graphs": OF_PYTHON,
    "integrations/torch/python/foreshock_torch/numbers": OF_PYTHON,
    "integrations/torch/python/foreshock_torch/rows": OF_PYTHON,
    "integrations/torch/python/foreshock_torch/signals": OF_PYTHON,
    "integrations/torch/python/foreshock_torch/unseen": OF_PYTHON,
    "kernels/block": "what all kernels of a device share",
    "kernels/device_code_seal": OF_A_BUILD,
    "kernels/device_seal": OF_A_BUILD,
    "lab/page/report": OF_A_PROGRAM,
    "lab/tensor": "the type that all of the lab computes with",
    "cmake/glibc_compat": OF_A_BUILD,
    "kernels/logarithm": "trainer and reference share it",
    "libmonitor/library_path": "tests replace it at link time",
    "packaging/elf": OF_A_PROGRAM,
    "packaging/newcomer_training": OF_A_PROGRAM,
    "packaging/relink": OF_A_PROGRAM,
    "packaging/torch_versions": "the list of versions",
}

OF_THE_ADAPTER = "the adapter is compiled as one file, so that it takes a user's compiler once"
LONELY = {  # headers that only one module includes, or none
    "detect/rank_conditions.h": "the rule of conditions.h that compares ranks",
    "integrations/torch/families.h": OF_THE_ADAPTER,
    "integrations/torch/interpreter.h": OF_THE_ADAPTER,
    "integrations/torch/older_runtime.h": OF_THE_ADAPTER,
    "integrations/torch/quiet_functions.h": OF_THE_ADAPTER,
    "integrations/torch/quiet_steps.h": OF_THE_ADAPTER,
    "lab/claims.h": "what the literature says, apart from what is measured",
    "lab/other_operations.h": "algorithms of the table in algorithm.cpp",
    "cmake/glibc_compat.h": "included by the compiler's option",
}

CIRCLES = {  # modules of a folder that include one another
    frozenset({"agent/publish", "agent/restart_state"}): "one state of the agent, written for readers and for itself",
    frozenset({"agent/run", "agent/sampling"}): "sampling.cpp holds the members of Run that choose how often",
    frozenset({"lab/claims", "lab/study"}): "a claim is judged by measurements of the study that names it",
}
LARGE_CIRCLES = {"lab": 8}  # of the arithmetic with its rounding


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


FILES = tracked()
PRODUCT = [name for name in FILES if pathlib.PurePath(name).suffix in CODE and not name.startswith("tests/")]


def module(name: str) -> str:
    return str(pathlib.PurePath(name).with_suffix(""))


def included(name: str, known: set[str]) -> set[str]:
    """Files of the repository that this one includes."""
    folder = pathlib.PurePath(name).parent
    words = INCLUDE.findall((ROOT / name).read_text(errors="replace"))
    places = [{word, f"libmonitor/include/{word}", str(folder / word)} & known for word in words]
    return set().union(*places)


@pytest.mark.quick
def test_no_module_is_a_fragment():
    lines: dict[str, int] = defaultdict(int)
    for name in PRODUCT:
        lines[module(name)] += len((ROOT / name).read_text().splitlines())
    assert {name for name, count in lines.items() if count < LEAST_LINES} == SMALL.keys()


@pytest.mark.quick
def test_each_header_serves_more_than_one_module():
    known = set(FILES)
    users: dict[str, set[str]] = defaultdict(set)
    for name in FILES:
        if pathlib.PurePath(name).suffix in {*CODE, ".in", ".cmake"} - {".py", ".js"}:
            for header in included(name, known):
                users[header] |= {module(name)} - {module(header)}
    public = ("libmonitor/include/", "integrations/cxx/")
    headers = [name for name in PRODUCT if name.endswith(".h") and not name.startswith(public)]
    assert {name for name in headers if len(users[name]) < 2} == LONELY.keys()


def circles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """Sets of modules of which each reaches each other one."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        rest = [start]
        while rest:
            for other in graph[rest.pop()] - found:
                found.add(other)
                rest.append(other)
        return found

    of = {name: reached(name) for name in list(graph)}
    found = {frozenset(other for other in of[name] if name in of[other]) for name in of if name in of[name]}
    return sorted((each for each in found if len(each) > 1), key=sorted)


@pytest.mark.quick
@pytest.mark.parametrize("folder", ORDERED)
def test_modules_of_a_folder_have_an_order(folder):
    known = {name for name in PRODUCT if str(pathlib.PurePath(name).parent) == folder}
    graph: dict[str, set[str]] = defaultdict(set)
    for name in known:
        graph[module(name)] |= {module(other) for other in included(name, known)} - {module(name)}
    found = circles(graph)
    large = [len(each) for each in found if len(each) > 2]
    assert large == ([LARGE_CIRCLES[folder]] if folder in LARGE_CIRCLES else [])
    excused = {each for each in CIRCLES if all(name.startswith(f"{folder}/") for name in each)}
    assert {each for each in found if len(each) == 2} == excused


@pytest.mark.quick
def test_circles_are_found():
    graph = defaultdict(set, {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()})
    assert circles(graph) == [frozenset("abc")]
