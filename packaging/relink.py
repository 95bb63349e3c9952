"""Links the program foreshock with the link command of ./dev package, but from the objects of another build.

So tests can check this link command without compiling everything again. `package` is the module of ./dev package.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import dependencies
import package

# An object that defines symbols which glibc 2.31 lacks. Only the package build has it, so link() compiles it.
GLIBC_OBJECT = "cli/CMakeFiles/foreshock_cli.dir/__/packaging/glibc_2_31.cpp.o"


def link(build: Path, program: Path) -> list[str]:
    """Links the objects and archives of the folder `build` into `program`, a file. Returns the words of the command."""
    glibc_object = program.with_suffix(".o")
    with dependencies.locked(package.BUILD):  # so that no other process configures or builds there meanwhile
        package.configure()
        compile_glibc_object(glibc_object)
        query = ["ninja", "-C", package.BUILD, "-t", "commands", "bin/foreshock"]
        link_line = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1]
    words = shlex.split(link_line.removeprefix(": && ").removesuffix(" && :"))  # CMake writes ": && COMMAND && :"
    words[words.index("-o") + 1] = str(program)
    words[words.index(GLIBC_OBJECT)] = str(glibc_object)
    package.run(*words, cwd=build)
    return words


def compile_glibc_object(target: Path) -> None:
    for entry in json.loads((package.BUILD / "compile_commands.json").read_text()):
        if entry["file"].endswith("/glibc_2_31.cpp"):
            words = shlex.split(entry["command"])
            words[words.index("-o") + 1] = str(target)
            return package.run(*words, cwd=entry["directory"])
    raise package.PackageError("the package build does not compile glibc_2_31.cpp")
