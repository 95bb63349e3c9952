#!/usr/bin/env python3
"""Runs test suites of other projects with and without the monitor and compares what a user could see of each test.

    tests/thirdparty/run.py [--suite NAME]... [--folder build/thirdparty] [--junit-xml FILE]

Each suite runs four times: twice without the monitor, once with its defaults, once with `--every 1 --max-slowdown 50%`.
A test that differs between the first two is named and left out. Prints a line for each suite and exits with 1 if an
outcome, a line of output, a warning or the peak of memory of any other test differs. Needs the release build, .venv
and a package registry (once).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import time
from xml.etree import ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from compare import Comparison, compare, read  # noqa: E402
from suites import PROGRAMS, REQUIRES, SUITES, Suite  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BASE_PYTHON = ROOT / ".venv" / "bin" / "python"
FORESHOCK = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")) / "bin" / "foreshock"
SUITE_SECONDS = 3600
# How each suite is run, in this order; None: without the monitor.
MODES: dict[str, tuple[str, ...] | None] = {
    "bare": None,
    "again": None,
    "default": (),
    "every1": ("--every", "1", "--max-slowdown", "50%"),
}


def say(text: str) -> None:
    print(f"thirdparty: {text}", flush=True)


def pip(python: pathlib.Path, *words: str) -> None:
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "-q", *words], check=True)


def prepare(folder: pathlib.Path, suites: list[Suite]) -> pathlib.Path:
    """Makes an environment beside .venv, whose packages it sees, and unpacks the sources. Returns its Python."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([BASE_PYTHON, "-m", "venv", folder / "venv"], check=True)
        site = next((folder / "venv" / "lib").glob("python*/site-packages"))
        (site / "base.pth").write_text(str(next((ROOT / ".venv" / "lib").glob("python*/site-packages"))) + "\n")
        pip(python, "install", *REQUIRES)
    for suite in suites:
        source = folder / suite.package
        if source.exists():
            continue
        say(f"fetching {suite.package} {suite.version}")
        wanted = f"{suite.package}=={suite.version}"
        with_source = folder / "sources"
        pip(python, "download", "--no-deps", "--no-binary", ":all:", "-d", str(with_source), wanted)
        pip(python, "install", "--no-deps", wanted)
        archive = next(with_source.glob(f"{suite.package.replace('_', '?')}-{suite.version}.tar.gz"))
        with tarfile.open(archive) as tar:
            tar.extractall(folder / "unpacked", filter="data")
        shutil.move(folder / "unpacked" / archive.name.removesuffix(".tar.gz"), source)
    return python


def environment() -> dict[str, str]:
    """One order of sets, one thread, no hub, one width of lines."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("FORESHOCK")}
    plain |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
    plain |= {"PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"}
    return plain | {"FORESHOCK_CACHE": str(ROOT / "build" / "adapters"), "FORESHOCK_RECORD": "off"}


def in_mode(mode: str, command: list[str]) -> list[str]:
    options = MODES[mode]
    return command if options is None else [str(FORESHOCK), "run", "--port", "0", *options, "--", *command]


def run_suite(python: pathlib.Path, suite: Suite, mode: str, folder: pathlib.Path) -> tuple[pathlib.Path, float]:
    """Returns what observe.py wrote, and the seconds it took."""
    told = folder / "results" / f"{suite.package}-{mode}.jsonl"
    told.parent.mkdir(exist_ok=True)
    told.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-p", "observe", "--observe", str(told), "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:randomly", "-p", "no:xdist", "-o", "addopts=", "--continue-on-collection-errors"]
    for name in suite.leave_out:
        command += [f"--ignore={name}"] if name.endswith(".py") else []
    names = [name for name in suite.leave_out if not name.endswith(".py")]
    if names or suite.select:
        command += ["-k", " and ".join([*([suite.select] if suite.select else []), *(f"not {n}" for n in names)])]
    command += suite.tests
    begin = time.monotonic()
    with told.with_suffix(".log").open("w") as log:
        subprocess.run(
            in_mode(mode, command), cwd=folder / suite.package, env=environment() | dict(suite.environment),
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, timeout=SUITE_SECONDS, check=False,
        )  # fmt: skip
    return told, time.monotonic() - begin


def program_problems(python: pathlib.Path, name: str) -> list[str]:
    """A program of this folder whose standard output is to be the same in every mode."""
    output = {}
    for mode in MODES:
        done = subprocess.run(
            in_mode(mode, [str(python), str(HERE / name)]), env=environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=SUITE_SECONDS, check=False,
        )  # fmt: skip
        output[mode] = (done.returncode, done.stdout)
    say(f"{name}: {output['bare'][1].count(chr(10))} lines, exit status {output['bare'][0]}")
    if output["bare"] != output["again"] or not output["bare"][1] or output["bare"][0] != 0:
        return [f"{name}: two runs without the monitor differ, or it fails"]
    return [f"{mode} {name}: {output[mode]}" for mode in MODES if output[mode] != output["bare"]]


def line_of(suite: Suite, mode: str, found: Comparison, seconds: float) -> str:
    more = sorted(with_us - bare for bare, with_us in found.peaks)
    memory = f"peak memory {more[len(more) // 2] / 1024:+.1f} MiB median, {more[-1] / 1024:+.1f} most" if more else ""
    return (
        f"{suite.package:18} {suite.version:8} {mode:8} {len(found.same):5} same, {len(found.differing)} differ, "
        f"{len(found.missing)} missing, {len(found.unsteady)} unsteady, {seconds:.0f} s; {memory}"
    )


def write_junit(path: pathlib.Path, lines: list[str], problems: list[str]) -> None:
    """One test case for each line of results, and a failed one for each difference."""
    top = ElementTree.Element("testsuite", name="thirdparty")
    for line in lines:
        ElementTree.SubElement(top, "testcase", name=line)
    for problem in problems:
        case = ElementTree.SubElement(top, "testcase", name=problem.partition(": ")[0])
        ElementTree.SubElement(case, "failure", message=problem)
    ElementTree.ElementTree(top).write(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", action="append", choices=[suite.package for suite in SUITES])
    parser.add_argument("--junit-xml", type=pathlib.Path, help="write the differences here too")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "thirdparty")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    suites = [suite for suite in SUITES if not options.suite or suite.package in options.suite]
    python = prepare(folder, suites)
    lines, problems, compared = [], [], 0
    for name in () if options.suite else PROGRAMS:
        problems += program_problems(python, name)
    for suite in suites:
        runs, seconds = {}, {}
        for mode in MODES:
            path, seconds[mode] = run_suite(python, suite, mode, folder)
            runs[mode] = read(path)
        if not runs["bare"]:
            problems.append(f"{suite.package}: no test ran")
        for mode in ("default", "every1"):
            found = compare(runs["bare"], runs["again"], runs[mode])
            compared += len(found.same) + len(found.differing)
            lines.append(line_of(suite, mode, found, seconds[mode]))
            say(lines[-1])
            problems += [f"{mode} {text}" for text in found.differing + found.more_memory]
            problems += [f"{mode} {name}: did not run" for name in found.missing]
        for name in found.unsteady:
            say(f"  left out, since it differs without the monitor: {name}")
    (folder / "results.json").write_text(json.dumps({"lines": lines, "problems": problems}, indent=1))
    if options.junit_xml:
        write_junit(options.junit_xml, lines, problems)
    for problem in problems:
        say(f"  {problem}")
    say(f"{compared} comparisons, {len(problems)} differences")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
