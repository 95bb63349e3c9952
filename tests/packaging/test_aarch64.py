"""For aarch64, under qemu: unit tests of the slots and of vector instructions against scalar ones, and the package.

On x86-64 qemu runs loads and stores in the order of the program, so the barriers of the slots are not tested here; a
comment in segment/writer.cpp says which ones order them.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import dependencies
import elf
import foreign
import package
import pytest
import torch_versions

pytestmark = pytest.mark.long
MACHINE = "aarch64"
OUTPUT = package.folder_for(MACHINE, package.OUTPUT)
PROGRAMS = [
    "segment_test", "shadow_elementary_test", "shadow_key_columns_test", "shadow_noise_floor_test",
    "shadow_reference_test",
]  # fmt: skip


TORCH = "2.9.1"  # its wheel for aarch64 runs without CUDA's libraries
STEPS = 10
TRAINING = f"""
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0) for _ in range(2)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range({STEPS}):
    loss = model(torch.randn(2, 16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print([weight.tolist() for weight in model.parameters()])
"""


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    try:
        dependencies.require_tools(MACHINE)
    except dependencies.DependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("aarch64")
    libraries = dependencies.LIBRARIES | dependencies.TEST_LIBRARIES
    prefix = dependencies.build_all(package.folder_for(MACHINE, package.DEPENDENCIES), MACHINE, libraries)
    settings = [f"-DCMAKE_PREFIX_PATH={prefix}", *dependencies.cmake_settings(MACHINE), "-DFORESHOCK_DEVICE_CODE=OFF"]
    package.run("cmake", "-S", package.ROOT, "-B", folder, "-G", "Ninja", *settings)
    package.run("cmake", "--build", folder, "--parallel", str(os.cpu_count() or 1), "--target", *PROGRAMS)
    return folder


@pytest.mark.parametrize("program", PROGRAMS)
def test_unit_tests_pass(build: pathlib.Path, program: str):
    command = [*dependencies.emulator(MACHINE), build / "bin" / program, "--gtest_brief=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The unpacked tarball of `./dev package --arch aarch64`."""
    package.run(sys.executable, package.ROOT / "packaging" / "package.py", "--arch", MACHINE, "--torch", TORCH)
    folder = tmp_path_factory.mktemp("unpacked")
    (tarball,) = OUTPUT.glob(f"foreshock-*-{MACHINE}.tar.gz")
    with tarfile.open(tarball) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.iterdir())


def test_package_is_for_aarch64(tree: pathlib.Path):
    binaries = [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink() and elf.is_elf(path)]
    assert {"foreshock", "adapter.so"} <= {path.name for path in binaries}
    for path in binaries:
        header = subprocess.run(["readelf", "-h", path], capture_output=True, text=True, check=True).stdout
        assert "AArch64" in header, path
    assert list(OUTPUT.glob(f"foreshock-*manylinux_2_31_{MACHINE}.whl"))


@pytest.fixture
def run(tree: pathlib.Path, tmp_path: pathlib.Path, torch_and_its_requirements: dict[str, set[pathlib.Path]]):
    """Runs a command in a root of this processor that has the package, Python and torch."""
    if reason := foreign.why_not(MACHINE):
        pytest.skip(reason)
    root = foreign.make_root(MACHINE)
    modules = tmp_path / "modules"  # written in Python, so those of this machine will do
    modules.mkdir()
    requirements = {name: paths for name, paths in torch_and_its_requirements.items() if name != "torch"}
    for path in set().union(*requirements.values()):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, modules / path.name)
    binds = {tree: "/mnt/foreshock", torch_versions.unpacked(TORCH, MACHINE): "/mnt/torch", modules: "/mnt/modules"}
    binds[tmp_path] = "/mnt/here"
    env = {"PYTHONPATH": "/mnt/torch:/mnt/modules", "FORESHOCK_CACHE": "/mnt/here/cache", "FORESHOCK_RECORD": "off"}

    def start(*command: str) -> subprocess.CompletedProcess[str]:
        done = foreign.run(MACHINE, root, list(command), env, binds, capture_output=True, timeout=3000)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return done

    return start


def test_training_has_a_verdict_and_the_same_bits(run, tmp_path: pathlib.Path):
    python = f"/usr/bin/{foreign.PYTHON}"
    (tmp_path / "train.py").write_text(TRAINING)
    plain = run(python, "/mnt/here/train.py")
    options = ["--port", "0", "--every", "1", "--max-slowdown", "100%", "--summary", "/mnt/here/summary.json"]
    watched = run("/mnt/foreshock/bin/foreshock", "run", *options, "--", python, "/mnt/here/train.py")
    assert watched.stdout == plain.stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    (rank,) = summary["ranks"]
    assert rank["steps"] == STEPS
    for counts in rank["attention"].values():
        assert counts["calls"] == 2 * STEPS
        assert 0 < counts["judged"] == counts["sampled"]
    assert summary["verdict"] == "healthy", watched.stderr
