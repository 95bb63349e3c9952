"""./dev package: a relocatable tarball and a wheel in build/packages, with everything that a run needs.

With --arch for another processor, they are in build/packages-PROCESSOR. The command line and the agent are one
executable that needs only glibc 2.31. The library that is preloaded into the trainer needs glibc 2.17. An adapter
connects that library with one release of torch. Adapters are prebuilt for the releases of --torch, so that the user's
machine needs neither a compiler nor root. Two builds of one commit are equal byte for byte, also in different folders.
A `tree` is a folder with the files of a package, as they will be installed.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import adapters
import components
import dependencies
import elf
import sbom
import torch_versions
from torch_versions import ROOT

BUILD = ROOT / "build" / "package"
OUTPUT = ROOT / "build" / "packages"
DEPENDENCIES = ROOT / "build" / "package-dependencies"
DOCUMENTS = Path("share") / "doc" / "foreshock"
SBOM = "foreshock.spdx.json"
REQUIRED = ("bin/foreshock", "lib/libforeshock.so", "lib/libforeshock.fatbin", "include/foreshock/hook.h")
# Addresses of the project for the wheel's metadata, by label; set them where the project is published.
PROJECT_URLS: dict[str, str] = {}
CLASSIFIERS = [
    "Development Status :: 4 - Beta",
    "Intended Audience :: Science/Research",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: C++",
    "Programming Language :: Python :: 3",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Topic :: System :: Monitoring",
]
# The processor of this machine; `machine` below is the one that a package is for.
MACHINE = platform.machine()
WHEEL_TAG = f"py3-none-manylinux_2_31_{MACHINE}"


class PackageError(Exception):
    """A failure; its text is shown to the user as it is."""


def run(*command: str | Path, **run_options: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **run_options)
    if done.returncode != 0:
        raise PackageError(f"{' '.join(map(str, command[:4]))} ... failed:\n{(done.stdout + done.stderr)[-3000:]}")


def version(prefix: Path, machine: str = MACHINE) -> str:
    """The version of foreshock that is installed or built in `prefix`."""
    command = [*dependencies.emulator(machine), prefix / "bin" / "foreshock", "--version"]
    return subprocess.check_output(command, text=True).split()[1]


def commit_time() -> str:
    """The time stamp of every file in a package, in seconds since 1970: SOURCE_DATE_EPOCH, or the time of the commit.
    With a fixed time stamp the same tree gives the same package."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    return subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True).strip()


def folder_for(machine: str, folder: Path) -> Path:
    """The folder beside `folder` that has the same for `machine`: `folder` itself for this machine's processor."""
    return folder.with_name(f"{folder.name}-{machine}") if dependencies.is_cross(machine) else folder


def configure(machine: str = MACHINE) -> None:
    """Builds the libraries that foreshock is linked with, then configures its build. Must be called within
    dependencies.locked(BUILD), since two calls at the same time would overwrite each other's files."""
    libraries = folder_for(machine, DEPENDENCIES)
    settings = [f"-DCMAKE_PREFIX_PATH={dependencies.build_all(libraries, machine)}"]
    settings.append(f"-DFORESHOCK_GLIBC={dependencies.old_glibc(libraries, machine)}")
    settings += dependencies.cmake_settings(machine)
    run("cmake", "--preset", "package", "-B", folder_for(machine, BUILD), *settings, cwd=ROOT)


def compile_all(machine: str = MACHINE) -> None:
    build = folder_for(machine, BUILD)
    with dependencies.locked(build):  # several `./dev test-torch` commands may call this at the same time
        configure(machine)
        print(f"package: building foreshock for {machine}", flush=True)
        run("cmake", "--build", build, "--parallel", str(os.cpu_count() or 1), cwd=ROOT)


def install(tree: Path, releases: list[str], machine: str = MACHINE) -> None:
    """Installs the build for `machine` to the prefix `tree`, and adds all other files of a package."""
    shutil.rmtree(tree, ignore_errors=True)
    run("cmake", "--install", folder_for(machine, BUILD), "--prefix", tree, "--strip")
    fill(tree, releases, adapters.CACHE, machine)


def fill(tree: Path, releases: list[str], cache: Path, machine: str = MACHINE) -> None:
    """Adds the files that CMake does not install: documents, licences, adapters, and SBOM, the list of components. That
    list is written last, since it contains a hash of all other files."""
    documents = tree / DOCUMENTS
    components.copy_licenses(documents / "licenses", torch_license(releases, machine))
    for name in ("README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, documents)
    shutil.copytree(ROOT / "docs", documents / "docs")
    for release in releases:
        library = tree / "lib" / "libforeshock.so"
        if dependencies.is_cross(machine):
            built = adapters.build_for(machine, torch_versions.unpacked(release, machine), library, cache)
        else:
            built = adapters.build(python_of(release), library, cache)
        copied = adapters.copy_into(built, tree / "share" / "foreshock" / "adapters")
        print(f"package: adapter {copied.name}", flush=True)
    (documents / SBOM).write_text(sbom.document(version(tree, machine), int(commit_time()), releases, tree))
    for path in [tree, *tree.rglob("*")]:  # permissions must not depend on the umask
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def torch_license(releases: list[str], machine: str) -> Path | None:
    """The licence file of the torch of the first release; None without releases. All releases have the same text."""
    if not releases:
        return None
    if dependencies.is_cross(machine):
        return next(torch_versions.unpacked(releases[0], machine).glob("torch-*.dist-info/**/LICENSE"))
    code = "import importlib.metadata as m; print([f.locate() for f in m.files('torch') if f.name == 'LICENSE'][0])"
    return Path(subprocess.check_output([python_of(releases[0]), "-c", code], text=True).strip())


def python_of(release: str) -> Path:
    """A Python with this release of torch: that of .venv if it has the release, else one in an environment for it."""
    default = ROOT / ".venv" / "bin" / "python"
    code = "import importlib.metadata as m; print(m.version('torch').partition('+')[0])"
    installed = subprocess.run([default, "-c", code], capture_output=True, text=True, check=False)
    return default if installed.stdout.strip() == release else torch_versions.python_with(release)


def check(tree: Path, releases: list[str]) -> None:
    """Checks that all parts exist and that the binaries run on the oldest supported system, Debian 11 (glibc 2.31)."""
    for part in REQUIRED:
        if not (tree / part).exists():
            hint = "; install nvcc 12.8 or later" if part.endswith(".fatbin") else ""
            raise PackageError(f"{part} is missing in {tree}{hint}")
    if len(list(tree.glob("share/foreshock/adapters/*/adapter.so"))) != len(releases):
        raise PackageError(f"share/foreshock/adapters: an adapter of {' '.join(releases)} is missing in {tree}")
    for path in sorted(path for path in tree.rglob("*") if path.is_file() and elf.is_elf(path)):
        if wrong := elf.problems(path):
            raise PackageError(f"{path.relative_to(tree)}: {'; '.join(wrong)}")
        highest = ", ".join(f"{kind} {'.'.join(map(str, n))}" for kind, n in elf.versions(path).items())
        print(f"package: {path.relative_to(tree)} needs {highest or 'nothing'}", flush=True)
        if newer := elf.too_new(path):
            raise PackageError(f"{path.relative_to(tree)} needs {' '.join(newer)}, which Debian 11 lacks")


def make_tarball(tree: Path, output: Path = OUTPUT, machine: str = MACHINE) -> Path:
    target = output / f"{tree.name}-linux-{machine}.tar.gz"
    reproducible = ["--sort=name", f"--mtime=@{commit_time()}", "--owner=0", "--group=0", "--numeric-owner"]
    environment = os.environ | {"GZIP": "-n"}  # the header of the compressed file then has no time stamp
    run("tar", "-C", tree.parent, *reproducible, "-czf", target, tree.name, env=environment)
    return target


def description() -> str:
    """The README without its links to files of the repository, which a package does not contain."""
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", (ROOT / "README.md").read_text())


def metadata(release: str, license_files: list[str]) -> str:
    """The METADATA file of the wheel."""
    return "\n".join([
        "Metadata-Version: 2.4",
        "Name: foreshock",
        f"Version: {release}",
        "Summary: A seismograph for training runs: watches the attention of a running trainer",
        "Author: The foreshock authors",
        "License-Expression: Apache-2.0",
        *(f"License-File: {file}" for file in license_files),
        "Keywords: pytorch,attention,training,monitoring,numerics,prometheus",
        *(f"Project-URL: {label}, {address}" for label, address in PROJECT_URLS.items()),
        "Requires-Python: >=3.9",
        *(f"Classifier: {each}" for each in CLASSIFIERS),
        "Description-Content-Type: text/markdown",
        "",
        description(),
    ])  # fmt: skip


def make_wheel(tree: Path, output: Path = OUTPUT, machine: str = MACHINE) -> Path:
    """Makes a wheel whose files pip installs below the prefix of a Python ("scripts" into bin, "data" as they are). The
    executable finds lib, share and include relative to its own path."""
    release, tag = version(tree, machine), WHEEL_TAG.replace(MACHINE, machine)
    name = f"foreshock-{release}"
    folder = tree.with_name("wheel") / name
    shutil.rmtree(folder.parent, ignore_errors=True)
    data = folder / f"{name}.data"
    shutil.copytree(tree, data / "data", ignore=shutil.ignore_patterns("bin"))
    shutil.copytree(tree / "bin", data / "scripts")
    # `foreshock run` puts this module on PYTHONPATH. A training that runs without it can import the module only if the
    # wheel installs it.
    shutil.copy(tree / "share" / "foreshock" / "python" / "foreshock.py", folder)
    information = folder / f"{name}.dist-info"
    information.mkdir()
    documents = tree / DOCUMENTS
    licenses = information / "licenses"
    shutil.copytree(documents / "licenses", licenses / "third-party")
    for file in ("LICENSE", "NOTICE"):
        shutil.copy(documents / file, licenses)
    files = sorted(str(path.relative_to(licenses)) for path in licenses.rglob("*") if path.is_file())
    (information / "METADATA").write_text(metadata(release, files))
    (information / "sboms").mkdir()
    shutil.copy(documents / SBOM, information / "sboms")
    wheel = ["Wheel-Version: 1.0", "Generator: foreshock", "Root-Is-Purelib: false", f"Tag: {tag}"]
    (information / "WHEEL").write_text("\n".join(wheel) + "\n")
    environment = os.environ | {"SOURCE_DATE_EPOCH": commit_time()}
    run(sys.executable, "-m", "wheel", "pack", folder, "--dest-dir", output, env=environment)
    return output / f"{name}-{tag}.whl"


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev package", description=(__doc__ or "").splitlines()[0])
    choice = "releases of torch to bring adapters for, separated by commas; all: every one that is tested"
    parser.add_argument("--torch", default="2.13.0", help=choice, metavar="RELEASES")
    parser.add_argument("--arch", default=MACHINE, choices=dependencies.DEBIAN_NAMES, help="processor [this machine's]")
    arguments = parser.parse_args()
    machine = arguments.arch
    releases = torch_versions.RELEASES if arguments.torch == "all" else arguments.torch.split(",")
    if unknown := [release for release in releases if release not in torch_versions.RELEASES]:
        parser.error(f"torch {unknown[0]} is not one of {' '.join(torch_versions.RELEASES)}")
    try:
        dependencies.require_tools(machine)
        compile_all(machine)
        trees = folder_for(machine, ROOT / "build" / "package-tree")
        tree = trees / f"foreshock-{version(folder_for(machine, BUILD), machine)}"
        install(tree, releases, machine)
        check(tree, releases)
        output = folder_for(machine, OUTPUT)  # `pip install build/packages/*.whl` must find one wheel
        output.mkdir(parents=True, exist_ok=True)
        for path in (make_tarball(tree, output, machine), make_wheel(tree, output, machine)):
            print(f"package: {path.relative_to(ROOT)}, {path.stat().st_size / 2**20:.1f} MiB", flush=True)
    except (PackageError, dependencies.DependencyError, components.ComponentError, adapters.AdapterError) as error:
        sys.exit(f"package: {error}")


if __name__ == "__main__":
    main()
