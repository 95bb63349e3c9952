"""Links the program foreshock with the link command of ./dev package, but from the objects of another build. So tests
can check this link command without compiling everything again. `package` is the module of ./dev package."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import dependencies
import package

# Defines symbols that glibc 2.31 lacks. Only the package build has this object, so link() compiles it.
BASELINE_OBJECT = "cli/CMakeFiles/foreshock_cli.dir/__/packaging/glibc_2_31.cpp.o"


def link(build: Path, program: Path) -> list[str]:
    """Links the objects and archives of the folder `build` to the file `program`. Returns the words of the command."""
    baseline = program.with_suffix(".o")
    with dependencies.alone_in(package.BUILD):  # no other process configures or builds there meanwhile
        package.configure()
        compile_baseline(baseline)
        query = ["ninja", "-C", package.BUILD, "-t", "commands", "bin/foreshock"]
        last = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1]
    words = shlex.split(last.removeprefix(": && ").removesuffix(" && :"))  # CMake writes ": && COMMAND && :"
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
