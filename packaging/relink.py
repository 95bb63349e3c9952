"""Links the program foreshock with the link command of ./dev package, but from the objects of any other build. So tests
can check this link command without compiling everything again."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import dependencies
import package

BASELINE_OBJECT = "cli/CMakeFiles/foreshock_cli.dir/__/packaging/glibc_2_31.cpp.o"  # only the package build has it


def link(build: Path, program: Path) -> list[str]:
    """Links the objects and archives of the folder `build` to `program`. Returns the words of the link command."""
    baseline = program.with_suffix(".o")
    with dependencies.alone_in(package.BUILD):
        package.configure()
        compile_baseline(baseline)
        query = ["ninja", "-C", package.BUILD, "-t", "commands", "bin/foreshock"]
        last = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1]
    words = shlex.split(last.removeprefix(": && ").removesuffix(" && :"))
    words[words.index("-o") + 1] = str(program)
    words[words.index(BASELINE_OBJECT)] = str(baseline)
    package.run(*words, cwd=build)
    return words


def compile_baseline(target: Path) -> None:
    for entry in json.loads((package.BUILD / "compile_commands.json").read_text()):
        if entry["file"].endswith("/glibc_2_31.cpp"):
            words = shlex.split(entry["command"])
            words[words.index("-o") + 1] = str(target)
            return package.run(*words, cwd=entry["directory"])
    raise package.PackageError("the package build does not compile glibc_2_31.cpp")
