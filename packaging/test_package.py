"""./dev test-package: the newcomer's path with the packages of build/packages on Debian 11, 12 and testing.

For each system, newcomer.py does what a new user (the newcomer) does: it installs the packages and trains with them in
a bare chroot, as a user other than root and without a compiler. This program itself needs root, to make chroots and
enter them. Missing downloads need a network, and the disk needs 25 GB. build/packages must contain the adapters
(libraries for one release of torch) for the releases in SYSTEMS: `./dev package --torch 2.8.0,2.13.0,2.15.0`, or all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from chroot import USER, Chroot, ChrootError
from torch_versions import ROOT

PACKAGES = ROOT / "build" / "packages"


class System(NamedTuple):
    name: str
    suite: str
    torch: str  # a release with wheels for this system's Python


SYSTEMS = [
    System("Debian 11", "bullseye", "2.8.0"),
    System("Debian 12", "bookworm", "2.13.0"),
    System("Debian testing", "testing", "2.15.0"),
]


def wheels_for(chroot: Chroot, release: str) -> Path:
    """Downloads torch and its dependencies for the Python of the chroot with this machine's pip. Returns the folder."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    python = chroot.output_of("python3", "-c", program).strip()
    folder = ROOT / "build" / "package-wheels" / f"{python}-{release}"
    if (folder / "ready").exists():
        return folder
    print(f"package: downloading torch {release} for Python {python}", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), f"torch=={release}"]
    command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    if python == "3.9":  # pip omits this requirement of Python 3.9, since it looks at its own, newer Python
        command.append("importlib-metadata")
    for policy in ("2014", *(f"_2_{minor}" for minor in range(17, 32))):  # for glibc 2.17 to 2.31, that of Debian 11
        command += ["--platform", f"manylinux{policy}_x86_64"]
    subprocess.run(command, check=True)
    (folder / "ready").touch()  # last, so that an interrupted download is repeated
    return folder


def try_system(system: System) -> None:
    """Runs newcomer.py in a chroot of the system; raises ChrootError if it fails."""
    chroot = Chroot(system.suite, f"newcomer-{system.suite}", ["python3-venv", "python3-pip"])
    version = (chroot.path / "etc" / "debian_version").read_text().strip()
    print(f"{system.name} ({version})", flush=True)
    binds = {PACKAGES: "/mnt/packages", wheels_for(chroot, system.torch): "/mnt/wheels"}
    binds[ROOT / "packaging"] = "/mnt/packaging"
    command = ["python3", "/mnt/packaging/newcomer.py", "/mnt/packages", "/mnt/wheels", system.torch]
    begin = time.monotonic()
    done = chroot.run(*command, user=USER, binds=binds)
    if done.returncode != 0:
        raise ChrootError(f"{system.name}: the newcomer's path ended with {done.returncode}")
    print(f"  passed in {time.monotonic() - begin:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev test-package", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suites", nargs="*", help="only these of " + ", ".join(system.suite for system in SYSTEMS))
    chosen = parser.parse_args().suites
    if not list(PACKAGES.glob("foreshock-*.whl")):
        sys.exit("package: no packages yet; type: ./dev package --torch all")
    try:
        for system in SYSTEMS:
            if not chosen or system.suite in chosen:
                try_system(system)
    except (ChrootError, subprocess.SubprocessError) as error:
        sys.exit(f"package: {error}")


if __name__ == "__main__":
    main()
