"""Static builds of the libraries that Debian has only as shared ones, from Debian's own source packages.

The version is the one of the installed development package, so what is shipped is what the tests ran with. Sources
come from the archives that apt knows already; nothing of the system is changed, and root is not needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

# Development package -> what to tell its CMake.
LIBRARIES = {
    "libfmt-dev": ["FMT_DOC=OFF", "FMT_TEST=OFF"],
    "libhwy-dev": ["HWY_ENABLE_CONTRIB=OFF", "HWY_ENABLE_EXAMPLES=OFF", "HWY_ENABLE_TESTS=OFF"],
    "prometheus-cpp-dev": [
        "ENABLE_PULL=OFF", "ENABLE_PUSH=OFF", "ENABLE_COMPRESSION=OFF", "ENABLE_TESTING=OFF",
    ],
}  # fmt: skip


class DependencyError(Exception):
    """One line that says what to do."""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).strip()[-1000:]
        raise DependencyError(f"{' '.join(words[:4])} ... failed:\n{tail}")
    return done.stdout


def source_of(package: str) -> str:
    """ "highway=1.0.3-3" of the installed libhwy-dev."""
    return run("dpkg-query", "-W", "-f", "${source:Package}=${source:Version}", package)


def source_options(work: Path) -> list[str]:
    """Options of apt-get under which the sources of every archive it knows are listed in `work`."""
    query = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"]
    archives = run(*query, "Created-By: Packages", "Architecture: amd64").splitlines()
    lines = [f"deb-src {line}" for line in sorted(set(archives)) if "debian" in line or "ubuntu" in line]
    if not lines:
        raise DependencyError("apt knows no Debian or Ubuntu archive to take sources from")
    lists = work / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    (work / "sources.list").write_text("\n".join(lines) + "\n")
    places = {"sourcelist": work / "sources.list", "sourceparts": "/dev/null"}
    options = [f"-oDir::Etc::{key}={value}" for key, value in places.items()]
    return [*options, f"-oDir::State::Lists={lists}", "-oAPT::Sandbox::User=root"]


def unpack(source: str, work: Path) -> Path:
    name, _, version = source.partition("=")
    options = source_options(work)
    run("apt-get", *options, "update", "-q")
    run("apt-get", *options, "source", "-q", source, cwd=work)
    upstream = version.partition(":")[2] or version
    return work / f"{name}-{upstream.rpartition('-')[0]}"


def build_one(package: str, settings: list[str], prefix: Path, work: Path) -> None:
    source = source_of(package)
    stamp = prefix / f"{package}.stamp"
    if stamp.exists() and stamp.read_text() == source:
        return
    print(f"package: building {source} as a static library", flush=True)
    folder = work / package
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tree = unpack(source, folder)
    common = ["CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=OFF", "CMAKE_POSITION_INDEPENDENT_CODE=ON"]
    common += [f"CMAKE_INSTALL_PREFIX={prefix}", "CMAKE_INSTALL_LIBDIR=lib"]
    flags = [f"-D{setting}" for setting in (*common, *settings)]
    run("cmake", "-G", "Ninja", "-S", tree, "-B", folder / "build", *flags)
    run("cmake", "--build", folder / "build", "--target", "install", "--parallel", str(os.cpu_count() or 1))
    stamp.write_text(source)


def build_all(work: Path) -> Path:
    """Prefix with the static libraries, to be put before the system's in CMAKE_PREFIX_PATH."""
    prefix = work / "prefix"
    for package, settings in LIBRARIES.items():
        build_one(package, settings, prefix, work)
    return prefix
