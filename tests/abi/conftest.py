"""Fixtures of the ABI tests: the library, and C programs compiled against its public headers."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "libmonitor" / "include"
C99 = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}"]


@pytest.fixture(scope="session")
def library() -> pathlib.Path:
    import monitored

    if not monitored.LIBRARY.exists():
        pytest.fail(f"{monitored.LIBRARY} is missing: build it first with ./dev build")
    return monitored.LIBRARY


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory):
    """compile_c(name, *sources, *flags): an executable from C99 sources."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or "clang"
    folder = tmp_path_factory.mktemp("abi")

    def compile_program(name: str, *arguments: str) -> str:
        target = str(folder / name)
        subprocess.run([compiler, *C99, "-o", target, *arguments, "-lm"], check=True)
        return target

    return compile_program
