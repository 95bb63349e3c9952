"""Provides what the packaged `foreshock` is linked with: static libraries, and the oldest supported glibc (2.31).

Debian has the libraries only as shared ones. They are built from Debian's source packages in the installed version, so
that foreshock's packages contain the version that the tests used. glibc is downloaded as a binary package. All packages
come from the archives in apt's configuration. The system is not changed, and root is not needed.

`machine` is the processor that the libraries are for, by the name that uname prints. Another one than this machine's
needs Debian's cross compiler for it, a toolchain file in cmake/, and qemu. Header-only libraries (Boost, spdlog,
nlohmann-json) are those of /usr/include for every processor.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# By development package: the CMake settings, each NAME=VALUE, with which its source is built.
LIBRARIES = {
    "libfmt-dev": ["FMT_DOC=OFF", "FMT_TEST=OFF"],
    "libhwy-dev": ["HWY_ENABLE_CONTRIB=OFF", "HWY_ENABLE_EXAMPLES=OFF", "HWY_ENABLE_TESTS=OFF"],
    "prometheus-cpp-dev": ["ENABLE_PULL=OFF", "ENABLE_PUSH=OFF", "ENABLE_COMPRESSION=OFF", "ENABLE_TESTING=OFF"],
}

TEST_LIBRARIES = {"libgtest-dev": []}  # for unit tests on another processor

# By distribution: its release with glibc 2.31. Addresses of archives contain the name of the distribution.
GLIBC_2_31_RELEASES = {"debian": "bullseye", "ubuntu": "focal"}


class DependencyError(Exception):
    """The text, for the user, says what failed. If a command failed, the text has the end of its output."""


def is_cross(machine: str) -> bool:
    """Whether programs for `machine` need another processor than this machine's."""
    return machine != platform.machine()


def emulator(machine: str) -> list[str]:
    """The words that precede a command for `machine`; none if this machine can run it."""
    return [f"qemu-{machine}-static", "-L", f"/usr/{machine}-linux-gnu"] if is_cross(machine) else []


def require_tools(machine: str) -> None:
    """Raises DependencyError unless the cross compiler and qemu for `machine` are installed, or not needed."""
    tools = {f"{machine}-linux-gnu-g++": f"g++-{machine}-linux-gnu", f"qemu-{machine}-static": "qemu-user-static"}
    missing = [package for tool, package in tools.items() if is_cross(machine) and shutil.which(tool) is None]
    if missing:
        raise DependencyError(f"{machine} needs packages; type: apt-get install {' '.join(missing)}")


def cmake_settings(machine: str) -> list[str]:
    """The options of CMake that select the compiler for `machine`."""
    if not is_cross(machine):
        return []
    # Debian keeps the description of spdlog in a folder of this machine's processor.
    own = run("gcc", "-print-multiarch").strip()
    toolchain = ROOT / "cmake" / f"{machine}.cmake"
    return [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", f"-Dspdlog_DIR=/usr/lib/{own}/cmake/spdlog"]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).strip()[-1000:]
        raise DependencyError(f"{' '.join(words[:4])} ... failed:\n{tail}")
    return done.stdout


def source_of(package: str) -> str:
    """The source package and version of an installed package: "highway=1.0.3-3" for libhwy-dev."""
    return run("dpkg-query", "-W", "-f", "${source:Package}=${source:Version}", package)


def archives() -> list[str]:
    """The Debian and Ubuntu archives in apt's configuration, such as "http://deb.debian.org/debian/ bookworm main"."""
    query = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    lines = sorted({line for line in run(*query).splitlines() if any(name in line for name in GLIBC_2_31_RELEASES)})
    if not lines:
        raise DependencyError("apt knows no Debian or Ubuntu archive to take sources from")
    return lines


# Debian's names of the processors that apt can be asked about.
DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}


def apt_options(lines: list[str], work: Path, machine: str = platform.machine()) -> list[str]:
    """Options of apt-get that make it use only these lines of sources.list and packages for `machine`, and keep its
    state in `work`."""
    lists = work / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    (work / "sources.list").write_text("\n".join(lines) + "\n")
    options = [f"-oDir::Etc::sourcelist={work / 'sources.list'}", "-oDir::Etc::sourceparts=/dev/null"]
    options += [f"-oDir::State::Lists={lists}", "-oDir::Cache::pkgcache=", "-oDir::Cache::srcpkgcache="]
    if is_cross(machine):
        options += [f"-oAPT::{name}={DEBIAN_NAMES[machine]}" for name in ("Architecture", "Architectures")]
    return [*options, "-oAPT::Sandbox::User=root"]  # apt's own user may not be allowed to write to `work`


def unpack(source: str, work: Path) -> Path:
    """Downloads and unpacks a source package, given as by source_of(). Returns its folder."""
    name, _, version = source.partition("=")
    options = apt_options([f"deb-src {line}" for line in archives()], work)
    run("apt-get", *options, "update", "-q")
    run("apt-get", *options, "source", "-q", source, cwd=work)
    upstream = (version.partition(":")[2] or version).rpartition("-")[0]  # version: [EPOCH:]UPSTREAM-REVISION
    return work / f"{name}-{upstream}"


def build_one(package: str, settings: list[str], prefix: Path, work: Path, machine: str) -> None:
    """Builds the static library of a development package into `prefix`. Does nothing if a stamp file there names the
    package's version. `settings`: as in LIBRARIES."""
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
    # Removes the folder's path from the texts of assertions, so that every machine builds the same libraries.
    common += [f"CMAKE_CXX_FLAGS=-ffile-prefix-map={folder}=."]
    flags = [*cmake_settings(machine), *(f"-D{setting}" for setting in (*common, *settings))]
    run("cmake", "-G", "Ninja", "-S", tree, "-B", folder / "build", *flags)
    run("cmake", "--build", folder / "build", "--target", "install", "--parallel", str(os.cpu_count() or 1))
    stamp.write_text(source)


@contextlib.contextmanager
def locked(work: Path) -> Iterator[None]:
    """Locks the folder `work` during the `with` block, since two processes may fill the folder at the same time."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def old_glibc(work: Path, machine: str = platform.machine()) -> Path:
    """Returns a directory with glibc 2.31 and its headers, for the compiler's --sysroot. Fills it at the first call."""
    with locked(work):
        return unpack_old_glibc(work, machine)


def download(packages: list[str], lines: list[str], folder: Path, machine: str) -> None:
    """Downloads Debian packages for `machine` from the archives of `lines` and unpacks them into `folder`/root."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = apt_options(lines, folder, machine)
    run("apt-get", *options, "update", "-q")
    run("apt-get", *options, "download", "-q", *packages, cwd=folder)
    for package in sorted(folder.glob("*.deb")):
        run("dpkg-deb", "-x", package, folder / "root")


def unpack_old_glibc(work: Path, machine: str) -> Path:
    """Does the work of old_glibc(). The caller must have locked `work`."""
    root = work / "glibc"
    if (root / "ready").exists():
        return root
    print("package: downloading glibc 2.31 to link with", flush=True)
    distribution = next(name for name in GLIBC_2_31_RELEASES if any(name in line for line in archives()))
    release = GLIBC_2_31_RELEASES[distribution]
    # Archives of security updates do not have the release under this name.
    address = next(line.split()[0] for line in archives() if distribution in line and "security" not in line)
    folder = work / "glibc-packages"
    packages = [f"{package}/{release}" for package in ("libc6", "libc6-dev")]
    download(packages, [f"deb {address} {release} main"], folder, machine)
    shutil.rmtree(root, ignore_errors=True)
    (folder / "root").rename(root)
    # Absolute links would point to the libraries of this system, so they are made relative.
    for link in root.rglob("*.so*"):
        if link.is_symlink() and (target := os.readlink(link)).startswith("/"):
            link.unlink()
            link.symlink_to(os.path.relpath(root / target.lstrip("/"), link.parent))
    (root / "ready").touch()
    return root


def build_all(work: Path, machine: str = platform.machine(), libraries: dict[str, list[str]] = LIBRARIES) -> Path:
    """Builds the static libraries. Returns their folder, which must precede the system's in CMAKE_PREFIX_PATH."""
    prefix = work / "prefix"
    with locked(work):
        for package, settings in libraries.items():
            build_one(package, settings, prefix, work, machine)
    return prefix
