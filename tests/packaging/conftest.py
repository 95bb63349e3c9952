"""Packages made from the build, and an environment that has Python and torch only."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import monitored
import pytest

sys.path.insert(0, str(monitored.ROOT / "packaging"))

import package  # noqa: E402
import relink  # noqa: E402

TORCH = importlib.metadata.version("torch").partition("+")[0]


@pytest.fixture(scope="session")
def packed_tree(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """What a package holds, from the build of the tests, with the command line linked as it is packed."""
    tree = tmp_path_factory.mktemp("tree") / "foreshock"
    package.run("cmake", "--install", monitored.BUILD, "--prefix", tree, "--strip")
    relink.link(monitored.BUILD, tree / "bin" / "foreshock")
    (tree / "bin" / "foreshock.o").unlink()
    package.fill(tree, [TORCH], monitored.ADAPTER_CACHE / "packed")
    return tree


@pytest.fixture(scope="session")
def packages(packed_tree: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    output = tmp_path_factory.mktemp("packages")
    return {"wheel": package.make_wheel(packed_tree, output), "tarball": package.make_tarball(packed_tree, output)}


def required(name: str, found: set[str]) -> set[str]:
    """This distribution and all that it requires here."""
    if name not in found:
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            if "extra ==" not in line:
                other = re.match(r"[\w.-]+", line).group()
                try:
                    importlib.metadata.distribution(other)
                except importlib.metadata.PackageNotFoundError:
                    continue
                required(other, found)
    return found


@pytest.fixture(scope="session")
def torch_and_its_requirements() -> dict[str, set[pathlib.Path]]:
    """By distribution, its files and folders in site-packages."""
    found = {}
    for name in required("torch", set()):
        distribution = importlib.metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}
        found[name] = {pathlib.Path(distribution.locate_file(top)) for top in tops}
    return found


@pytest.fixture
def bare(tmp_path: pathlib.Path, torch_and_its_requirements: dict[str, set[pathlib.Path]]) -> pathlib.Path:
    """A virtual environment with links to torch and what it requires: no compiler in PATH, nothing else installed."""
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for path in set().union(*torch_and_its_requirements.values()):
        if not (site / path.name).exists():
            (site / path.name).symlink_to(path)
    return folder


@pytest.fixture
def bare_environment(bare: pathlib.Path, base: pathlib.Path, tmp_path: pathlib.Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    more = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "OMP_NUM_THREADS": "1", "FORESHOCK_RECORD": "off"}
    return {"PATH": str(bare / "bin"), "HOME": str(home), "LANG": "C.UTF-8", "FORESHOCK_DIR": str(base), **more} | {
        name: os.environ[name] for name in ("TMPDIR",) if name in os.environ
    }
