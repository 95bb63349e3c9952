"""./dev package: a relocatable tarball and a wheel in build/packages, with everything that a run needs.

The command line and the agent are one static executable, the guest needs nothing newer than glibc 2.17, adapters
come prebuilt for the releases of torch that are asked for: no compiler and no root on the machine that uses them.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import adapters
import dependencies
import elf
import torch_versions
from torch_versions import ROOT

BUILD = ROOT / "build" / "package"
OUTPUT = ROOT / "build" / "packages"
# A file of everything that is inside the static executable and the pages it writes: the licences go along.
LINKED = [
    "/usr/include/boost/version.hpp", "/usr/include/eigen3/Eigen/Core", "/usr/include/fmt/core.h",
    "/usr/include/hwy/highway.h", "/usr/include/nlohmann/json.hpp", "/usr/include/prometheus/registry.h",
    "/usr/include/spdlog/spdlog.h", "/usr/share/javascript/chart.js/Chart.min.js", "libc.a", "libstdc++.a",
]  # fmt: skip
WHEEL_TAG = f"py3-none-manylinux_2_31_{platform.machine()}"


class PackageError(Exception):
    """One line that says what to do."""


def run(*command: str | Path, **more: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise PackageError(f"{' '.join(map(str, command[:4]))} ... failed:\n{(done.stdout + done.stderr)[-3000:]}")


def version() -> str:
    return subprocess.check_output([BUILD / "bin" / "foreshock", "--version"], text=True).split()[1]


def commit_time() -> str:
    """Seconds; every file of a package carries it, so that the same tree gives the same package."""
    return subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True).strip()


def compile_all() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:  # test-torch of several releases at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        prefix = dependencies.build_all(ROOT / "build" / "package-dependencies")
        print("package: building foreshock", flush=True)
        run("cmake", "--preset", "package", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=ROOT)
        run("cmake", "--build", "--preset", "package", "--parallel", str(os.cpu_count() or 1), cwd=ROOT)


def package_of(file: str) -> str:
    """The Debian package that brought a file, or a library of the compiler."""
    if not file.startswith("/"):
        file = subprocess.check_output(["gcc", f"-print-file-name={file}"], text=True).strip()
    answer = subprocess.run(["dpkg", "-S", os.path.realpath(file)], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise PackageError(f"{file} belongs to no Debian package; its licence has to go along")
    return answer.stdout.partition(":")[0]


def copy_licenses(folder: Path) -> None:
    folder.mkdir(parents=True)
    for file in LINKED:
        package = package_of(file)
        shutil.copy(Path("/usr/share/doc") / package / "copyright", folder / f"{package}.txt")


def install(tree: Path, releases: list[str]) -> None:
    """Everything a package holds, laid out below `tree` as below any prefix."""
    shutil.rmtree(tree, ignore_errors=True)
    run("cmake", "--install", BUILD, "--prefix", tree, "--strip")
    documents = tree / "share" / "doc" / "foreshock"
    copy_licenses(documents / "licenses")
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, documents)
    shutil.copytree(ROOT / "docs", documents / "docs")
    for release in releases:
        built = adapters.build(python_of(release), tree / "lib" / "libforeshock.so")
        place = adapters.ship(built, tree / "share" / "foreshock" / "adapters")
        print(f"package: adapter {place.name}", flush=True)
    check(tree)


def python_of(release: str) -> Path:
    ours = ROOT / ".venv" / "bin" / "python"
    code = "import importlib.metadata as m; print(m.version('torch').partition('+')[0])"
    answer = subprocess.run([ours, "-c", code], capture_output=True, text=True, check=False)
    return ours if answer.stdout.strip() == release else torch_versions.python_with(release)


def check(tree: Path) -> None:
    """That nothing in it asks for more than the oldest system has."""
    if shared := elf.needed(tree / "bin" / "foreshock"):
        raise PackageError(f"the command line needs {' '.join(shared)}; it has to be static")
    for path in sorted(path for path in tree.rglob("*") if path.is_file() and elf.is_elf(path)):
        highest = ", ".join(f"{kind} {'.'.join(map(str, n))}" for kind, n in elf.versions(path).items())
        print(f"package: {path.relative_to(tree)} needs {highest or 'nothing'}", flush=True)
        if newer := elf.too_new(path):
            raise PackageError(f"{path.relative_to(tree)} needs {' '.join(newer)}, which Debian 11 lacks")


def make_tarball(tree: Path) -> Path:
    target = OUTPUT / f"{tree.name}-linux-{platform.machine()}.tar.gz"
    same = ["--sort=name", f"--mtime=@{commit_time()}", "--owner=0", "--group=0", "--numeric-owner"]
    environment = os.environ | {"GZIP": "-n"}
    run("tar", "-C", tree.parent, *same, "-czf", target, tree.name, env=environment)
    return target


def metadata(name: str) -> str:
    return "\n".join([
        "Metadata-Version: 2.1",
        "Name: foreshock",
        f"Version: {name}",
        "Summary: A seismograph for training runs: watches the attention of a running trainer",
        "License: Apache-2.0",
        "Requires-Python: >=3.9",
        "Classifier: Operating System :: POSIX :: Linux",
        "Description-Content-Type: text/markdown",
        "",
        (ROOT / "README.md").read_text(),
    ])  # fmt: skip


def make_wheel(tree: Path) -> Path:
    """The tree below the prefix of a Python: bin, lib, share and include are found from the executable's place."""
    name = version()
    folder = ROOT / "build" / "package-wheel" / f"foreshock-{name}"
    shutil.rmtree(folder.parent, ignore_errors=True)
    data = folder / f"foreshock-{name}.data"
    shutil.copytree(tree, data / "data", ignore=shutil.ignore_patterns("bin"))
    shutil.copytree(tree / "bin", data / "scripts")
    # For `import foreshock` in a training that also runs without `foreshock run`.
    shutil.copy(tree / "share" / "foreshock" / "python" / "foreshock.py", folder)
    information = folder / f"foreshock-{name}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(metadata(name))
    wheel = ["Wheel-Version: 1.0", "Generator: foreshock", "Root-Is-Purelib: false", f"Tag: {WHEEL_TAG}"]
    (information / "WHEEL").write_text("\n".join(wheel) + "\n")
    environment = os.environ | {"SOURCE_DATE_EPOCH": commit_time()}
    run(sys.executable, "-m", "wheel", "pack", folder, "--dest-dir", OUTPUT, env=environment)
    return OUTPUT / f"foreshock-{name}-{WHEEL_TAG}.whl"


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev package", description=(__doc__ or "").splitlines()[0])
    choice = "releases of torch to bring adapters for, separated by commas; all: every one that is tested"
    parser.add_argument("--torch", default="2.13.0", help=choice, metavar="RELEASES")
    arguments = parser.parse_args()
    releases = torch_versions.RELEASES if arguments.torch == "all" else arguments.torch.split(",")
    if unknown := [release for release in releases if release not in torch_versions.RELEASES]:
        parser.error(f"torch {unknown[0]} is not one of {' '.join(torch_versions.RELEASES)}")
    try:
        compile_all()
        tree = ROOT / "build" / "package-tree" / f"foreshock-{version()}"
        install(tree, releases)
        OUTPUT.mkdir(parents=True, exist_ok=True)
        for path in (make_tarball(tree), make_wheel(tree)):
            print(f"package: {path.relative_to(ROOT)}, {path.stat().st_size / 2**20:.1f} MiB", flush=True)
    except (PackageError, dependencies.DependencyError, adapters.AdapterError) as error:
        sys.exit(f"package: {error}")


if __name__ == "__main__":
    main()
