"""./dev test-torch VERSION: the adapter and a training under foreshock with another torch than the pinned one.

For VERSION 2.6 or 2.14, torch is Debian's build, in a chroot of Debian trixie or testing, which needs root. For a
release of torch_versions.py, such as 2.8.0, torch is a wheel in a virtual environment. First runs
packaging/newcomer_training.py with and without the packaged build of foreshock. Both must give the same bits, and
foreshock must judge the attention calls that it samples. Then runs tests/integrations, the tests of the adapter (which
connects foreshock and torch).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import package
import torch_versions
from chroot import USER, Chroot, ChrootError
from torch_versions import ROOT

SUITES = {"2.6": "trixie", "2.14": "testing"}  # the Debian release with each version
PACKAGES = ["python3-torch", "libtorch-dev", "python3-pytest", "python3-numpy", "g++"]
PACKAGES += ["python3-setuptools", "python3-dev"]  # for torch.compile
FORESHOCK = ROOT / "build" / "test-torch"  # prefix of the installed build of foreshock
TREES = ROOT / "build" / "test-torch-trees"  # copies of the repository, by version

# run(command, environment) runs a command in the chroot or virtual environment with the torch. It returns the exit
# status and standard output. Paths in the command are those of this machine, which the chroot has too; "@HOME@" is
# replaced by the path of a folder that the command may write.
Runner = Callable[[list[str], dict[str, str]], tuple[int, str]]


class TestError(Exception):
    """The text is one line: the failed check."""


def snapshot(tree: Path) -> None:
    """Copies the repository to `tree`, so that edits during the tests do not affect them."""
    shutil.rmtree(tree, ignore_errors=True)
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)


def in_chroot(version: str, tree: Path) -> tuple[str, Runner]:
    """The Python of the chroot, and the function that runs commands there, in the folder `tree`."""
    chroot = Chroot(SUITES[version], f"torch-{version}", PACKAGES)
    home = f"/home/{USER}"

    def run(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
        # Debian's torch is built without libuv, which torch.distributed would use.
        variables = environment | {"USE_LIBUV": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        words = ["env", f"--chdir={tree}", *(word.replace("@HOME@", home) for word in command)]
        variables = {key: value.replace("@HOME@", home) for key, value in variables.items()}
        # binds: the repository has the same path inside the chroot.
        done = chroot.run(*words, user=USER, binds={ROOT: str(ROOT)}, env=variables, stdout=subprocess.PIPE)
        return done.returncode, done.stdout

    return "/usr/bin/python3", run


def in_environment(release: str, tree: Path) -> tuple[str, Runner]:
    """The Python of the virtual environment of a release, and the function that runs commands with it, in `tree`."""
    python = torch_versions.python_with(release)
    home = str(ROOT / "build" / "test-torch-home")

    def run(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
        variables = {key: value.replace("@HOME@", home) for key, value in environment.items()}
        words = [word.replace("@HOME@", home) for word in command]
        options = {"env": os.environ | variables, "cwd": tree, "stdout": subprocess.PIPE, "text": True}
        done = subprocess.run(words, check=False, **options)
        return done.returncode, done.stdout

    return str(python), run


def test_integrations(python: str, run: Runner, selection: str, log: Path) -> None:
    """Runs tests/integrations, as the default tests do with the pinned torch. `selection`: the -k of pytest, or ""."""
    begin = time.monotonic()
    options = ["-o", "cache_dir=@HOME@/pytest", "--tb=short", "-rfEs", *(["-k", selection] if selection else [])]
    command = [python, "-m", "pytest", "tests/integrations", *options]
    status, output = run(command, {"FORESHOCK_BUILD": str(ROOT / "build" / "release")})
    log.write_text(output)
    shown = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR", "SKIPPED"))]
    print("\n".join([*shown, *output.splitlines()[-1:]]), flush=True)
    if status != 0:
        raise TestError(f"tests/integrations failed; see {log}")
    print(f"package: tests/integrations passed in {time.monotonic() - begin:.0f} s", flush=True)


def last_json_line(text: str) -> dict:
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        raise TestError(f"no result in: {text[-500:]}")
    return json.loads(lines[-1])


def output_of(run: Runner, command: list[str], environment: dict[str, str]) -> str:
    """The output of a command, which must end with 0."""
    status, output = run(command, environment)
    if status != 0:
        raise TestError(f"{' '.join(command)} ended with {status}: {output[-2000:]}")
    return output


def test_training(python: str, run: Runner) -> None:
    foreshock = str(FORESHOCK / "bin" / "foreshock")
    environment = {"FORESHOCK_CACHE": "@HOME@/adapters", "FORESHOCK_RECORD": "off"}
    print(output_of(run, [foreshock, "doctor", "--python", python], environment), flush=True)
    training = [python, "packaging/newcomer_training.py"]
    plain = last_json_line(output_of(run, training, {}))
    summary = "@HOME@/summary.json"
    # With the default budget, a busy machine might sample none of these few steps.
    sampling = ["--every", "4", "--max-slowdown", "100%"]
    watched = output_of(run, [foreshock, "run", *sampling, "--summary", summary, "--", *training], environment)
    if last_json_line(watched) != plain:
        raise TestError(f"other results under foreshock: {watched} {plain}")
    rank = json.loads(output_of(run, ["cat", summary], {}))["ranks"][0]
    for name, counts in rank["attention"].items():  # forward and backward; newcomer_training.py makes 240 calls of each
        if counts["judged"] == 0 or counts["judged"] != counts["sampled"] or counts["calls"] != 240:
            raise TestError(f"{name}: {counts}")
        print(f"package: {name}: {counts['judged']} of {counts['calls']} calls judged", flush=True)
    # With the Python helper, layers are found by their weights ("parameter"), and optimizers report the steps.
    if rank["layer_source"] != "parameter" or rank["step_source"] == "counted":
        raise TestError(f"layers by {rank['layer_source']}, steps by {rank['step_source']}")
    print(f"package: torch {plain['torch']}: same bits, loss {plain['first']:.2f} -> {plain['last']:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev test-torch", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version", choices=[*SUITES, *torch_versions.RELEASES])
    parser.add_argument("--only", choices=["integrations", "training"])
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only these tests of tests/integrations")
    arguments = parser.parse_args()
    try:
        package.compile_all()
        package.run("cmake", "--install", package.BUILD, "--prefix", FORESHOCK, "--strip")
        tree = TREES / arguments.version
        snapshot(tree)
        prepare = in_chroot if arguments.version in SUITES else in_environment
        python, run = prepare(arguments.version, tree)
        if arguments.only != "integrations":
            test_training(python, run)
        if arguments.only != "training":
            log = ROOT / "build" / f"test-torch-{arguments.version}.log"
            test_integrations(python, run, arguments.k, log)
    except (TestError, ChrootError, package.PackageError, subprocess.SubprocessError) as error:
        sys.exit(f"package: torch {arguments.version}: {error}")


if __name__ == "__main__":
    main()
