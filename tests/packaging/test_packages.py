"""Wheel and tarball: what is in them, and a training under each where only Python and torch are installed."""

from __future__ import annotations

import email
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import components
import elf
import package
import pytest

TRAINING = """
import torch
layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
optimizer = torch.optim.AdamW(layer.parameters())
for _ in range(10):
    loss = layer(torch.randn(2, 16, 32)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PARTS = ("bin/foreshock", "lib/libforeshock.so", "include/foreshock/hook.h", "share/foreshock/torch/build_adapter.py")


def call(*words: object, env: dict[str, str]) -> str:
    done = subprocess.run([str(word) for word in words], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def check_training(foreshock: pathlib.Path, python: pathlib.Path, env: dict[str, str], folder: pathlib.Path) -> None:
    """Ten steps are followed and samples of them judged."""
    summary = folder / "summary.json"
    options = ["--port", "0", "--every", "1", "--max-slowdown", "100%", "--summary", summary]
    said = call(foreshock, "run", *options, "--", python, "-c", TRAINING, env=env)
    assert "not monitoring" not in said
    (rank,) = json.loads(summary.read_text())["ranks"]
    assert rank["steps"] == 10, rank
    assert 0 < rank["attention"]["forward"]["judged"] <= rank["attention"]["forward"]["calls"] == 10


def unpack(tarball: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    with tarfile.open(tarball) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


# A training that `foreshock run` has not started. The end of the process ends the run.
STARTED = """
import foreshock; print(foreshock.start(every=1, port=0))
import torch; torch.manual_seed(0); layer = torch.nn.Linear(32, 96); optimizer = torch.optim.AdamW(layer.parameters())
for _ in range(40):
    q, k, v = [t.view(2, 24, 4, 8).transpose(1, 2) for t in layer(torch.randn(2, 24, 32)).split(32, 2)]
    torch.nn.functional.scaled_dot_product_attention(q, k, v).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
print(layer.weight.tolist())
"""


def check_start(python: pathlib.Path, env: dict[str, str]) -> None:
    """foreshock.start() gives the same bits as without and a verdict, also where Python ignores PYTHONPATH (-I)."""
    plain = call(python, "-c", STARTED, env=env | {"FORESHOCK": "off"}).splitlines()
    assert plain[0] == "False"
    for options in ([], ["-I"]):
        started, weights, *summary = call(python, *options, "-c", STARTED, env=env).splitlines()
        assert (started, weights) == ("True", plain[1])
        verdicts = [line for line in summary if re.search(r"finished, 40 steps in .* healthy$", line)]
        assert len(verdicts) == 1, summary


@pytest.mark.long
def test_wheel_is_installed_used_and_removed(packages, bare, bare_environment, tmp_path):
    python = bare / "bin" / "python"
    before = {path for path in bare.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    call(python, "-m", "pip", "install", "--no-index", "--no-deps", packages["wheel"], env=bare_environment)
    version = call(python, "-c", "import foreshock; print(foreshock.__version__)", env=bare_environment)
    assert call(bare / "bin" / "foreshock", "--version", env=bare_environment).split()[1] == version.strip()
    said = call(bare / "bin" / "foreshock", "doctor", env=bare_environment)
    assert "prebuilt adapter tested" in said
    check_training(bare / "bin" / "foreshock", python, bare_environment, tmp_path)
    check_start(python, bare_environment)
    call(python, "-m", "pip", "uninstall", "--yes", "foreshock", env=bare_environment)
    after = {path for path in bare.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert after <= before


@pytest.mark.long
@pytest.mark.parametrize("home", ["writable", "read-only", "unset"])
def test_tarball_without_a_compiler(packages, bare, bare_environment, tmp_path, home):
    """A prebuilt adapter is loaded in place where the cache cannot be written."""
    tree = unpack(packages["tarball"], tmp_path / "unpacked")
    if home == "unset":
        del bare_environment["HOME"]
    elif home == "read-only":
        bare_environment["HOME"] = "/proc"  # where even root cannot make a directory
    check_training(tree / "bin" / "foreshock", bare / "bin" / "python", bare_environment, tmp_path)


@pytest.mark.long
def test_parts_licences_and_list_of_parts(packages, tmp_path):
    tree = unpack(packages["tarball"], tmp_path / "tarball")
    assert [part for part in PARTS if not (tree / part).is_file()] == []
    assert len(list((tree / "share" / "foreshock" / "adapters").glob("*/adapter.so"))) == 1
    documents = tree / package.DOCUMENTS
    assert {"LICENSE", "NOTICE", package.SBOM, "licenses"} <= {path.name for path in documents.iterdir()}
    (tmp_path / "wheel").mkdir()
    with zipfile.ZipFile(packages["wheel"]) as wheel:
        wheel.extractall(tmp_path / "wheel")
    (information,) = (tmp_path / "wheel").glob("*.dist-info")
    listed = {each["name"] for each in json.loads((documents / package.SBOM).read_text())["packages"]}
    assert (information / "sboms" / package.SBOM).read_bytes() == (documents / package.SBOM).read_bytes()
    notice = (documents / "NOTICE").read_text()
    for component in (*components.COMPONENTS, components.TORCH):
        file = component.name.replace(" ", "-").lower() + ".txt"
        for folder in (documents / "licenses", information / "licenses" / "third-party"):
            text = (folder / file).read_text()
            assert len(text) > 500, file
            assert "/usr/share" not in text, "a folder that other systems do not have"
            for referred in components.referred_licenses(text):
                assert (folder / "common-licenses" / referred).stat().st_size > 1000
        assert any(name.startswith(component.name) for name in listed)
        assert f"- {component.name}" in notice


@pytest.mark.long
def test_wheel_has_complete_metadata(packages):
    with zipfile.ZipFile(packages["wheel"]) as wheel:
        (name,) = (name for name in wheel.namelist() if re.fullmatch(r"foreshock-[^/]+/METADATA", name))
        metadata = email.message_from_bytes(wheel.read(name))
        names = set(wheel.namelist())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"] == "The foreshock authors"
    assert metadata["Requires-Python"] == ">=3.9"
    assert len(metadata.get_all("Classifier")) > 5
    folder = name.removesuffix("METADATA") + "licenses/"
    assert len(metadata.get_all("License-File")) > 10
    assert {folder + file for file in metadata.get_all("License-File")} <= names
    assert "](docs/" not in metadata.get_payload(), "links that lead nowhere outside of the repository"


@pytest.mark.long
def test_packages_of_one_tree_are_equal(packed_tree, packages, tmp_path):
    for path in (package.make_wheel(packed_tree, tmp_path), package.make_tarball(packed_tree, tmp_path)):
        (other,) = (each for each in packages.values() if each.name == path.name)
        assert path.read_bytes() == other.read_bytes(), path.name


@pytest.mark.parametrize("part", ["bin/foreshock", "lib/libforeshock.fatbin", "share/foreshock/adapters"])
def test_missing_part_is_reported(tmp_path, part):
    tree = tmp_path / "foreshock"
    for name in (*package.REQUIRED, "share/foreshock/adapters/torch-0/adapter.so"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("")
    package.check(tree, ["2.13.0"])
    (tree / part).rename(tmp_path / "elsewhere")
    with pytest.raises(package.PackageError, match=f"{part}.* is missing"):
        package.check(tree, ["2.13.0"])


@pytest.mark.long
def test_adapter_holds_no_path_of_this_machine(packed_tree):
    (adapter,) = (packed_tree / "share" / "foreshock" / "adapters").glob("*/adapter.so")
    content = adapter.read_bytes()
    for place in (package.ROOT, pathlib.Path(sys.prefix)):
        assert str(place).encode() not in content
    sections = subprocess.run(["readelf", "-SW", adapter], capture_output=True, text=True, check=True).stdout
    assert ".symtab" not in sections
    assert elf.problems(adapter) == []
