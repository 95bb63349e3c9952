"""Chroots with releases of Debian, for tests of packages. Each is made once, under build/chroots, then reused.

Needs root and debootstrap. Packages come from DEBIAN_MIRROR, or else from the Debian archive in this machine's apt
configuration. Every command inside runs in mount and process namespaces of its own, so that nothing outlives it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHROOTS = ROOT / "build" / "chroots"
USER = "newcomer"  # an unprivileged user in the chroot, with uid 1000
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ChrootError(Exception):
    """The text: the missing tool, or the failed command and the end of its output."""


def mirror() -> str:
    """The URL of the Debian archive: DEBIAN_MIRROR, or that of this machine's apt (not the one of security updates)."""
    if mirror_url := os.environ.get("DEBIAN_MIRROR"):
        return mirror_url
    query = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    archives = [line.rstrip("/") for line in answer.stdout.split() if "security" not in line]
    if not archives:
        raise ChrootError("apt knows no Debian archive; set DEBIAN_MIRROR to one")
    return archives[0]


def check_tools() -> None:
    if os.geteuid() != 0:
        raise ChrootError("chroots need root; type: sudo -E ./dev ...")
    for tool in ("debootstrap", "unshare"):
        if shutil.which(tool) is None:
            raise ChrootError(f"{tool} is missing; type: apt-get install debootstrap util-linux")


class Chroot:
    """A chroot with a Debian release (`suite`) and `packages`, in the folder `name` (by default `suite`).

    The constructor makes the chroot unless it exists. The file "ready" in the folder marks the chroot as complete and
    lists the packages asked for last.
    """

    def __init__(self, suite: str, name: str = "", packages: Sequence[str] = ()) -> None:
        self.suite = suite
        self.path = CHROOTS / (name or suite)
        ready = self.path / "ready"
        if ready.exists() and ready.read_text() == " ".join(packages):
            return
        check_tools()
        if ready.exists():  # the chroot is complete, but has other packages
            self.install(packages)
            ready.write_text(" ".join(packages))
            return
        base = CHROOTS / suite if name else None  # a named chroot starts as a copy of the suite's unnamed one
        if base is not None and not (base / "ready").exists():
            Chroot(suite)  # makes the unnamed one
        # The chroot is made under another name and renamed at the end, so that an incomplete one is never used.
        unfinished = CHROOTS / (self.path.name + ".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        CHROOTS.mkdir(parents=True, exist_ok=True)
        final, self.path = self.path, unfinished  # install() and output_of() use self.path
        if base is None:
            self._debootstrap()
        else:
            subprocess.run(["cp", "-a", "--reflink=auto", base, unfinished], check=True)
            (unfinished / "ready").unlink()
        if packages:
            self.install(packages)
        (unfinished / "ready").write_text(" ".join(packages))
        shutil.rmtree(final, ignore_errors=True)
        self.path = unfinished.rename(final)

    def _debootstrap(self) -> None:
        final = self.path.with_suffix("")  # without the .new of an unfinished chroot
        print(f"package: making a Debian {self.suite} in {final}", flush=True)
        command = ["debootstrap", "--variant=minbase", f"--keyring={KEYRING}", "--include=ca-certificates"]
        done = subprocess.run(
            [*command, self.suite, str(self.path), mirror()], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ChrootError(f"debootstrap {self.suite} failed: {(done.stderr or done.stdout).strip()[-300:]}")
        # The mirror may be a copy of an old state, whose Release file is past its Valid-Until date. Signatures are
        # checked in any case.
        setting = 'Acquire::Check-Valid-Until "false";\n'
        (self.path / "etc" / "apt" / "apt.conf.d" / "99frozen").write_text(setting)
        self.output_of("useradd", "--create-home", "--uid", "1000", USER)

    def install(self, packages: Sequence[str]) -> None:
        print(f"package: installing {' '.join(packages)} in {self.path.name}", flush=True)
        self.output_of("apt-get", "update", "-q")
        self.output_of("apt-get", "install", "-q", "-y", "--no-install-recommends", *packages)

    def run(
        self,
        *command: str,
        user: str = "root",
        binds: Mapping[Path, str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 1800,
        **run_options: object,
    ) -> subprocess.CompletedProcess[str]:
        """Runs `command` in the chroot as `user`, with `binds` (path outside: path inside) mounted. The environment is
        only PATH, HOME, LANG, DEBIAN_FRONTEND and `env`. After `timeout` seconds, subprocess.run() kills the command
        and raises an error. `run_options`: further arguments of subprocess.run()."""
        home = "/root" if user == "root" else f"/home/{user}"
        variables = {"PATH": SEARCH_PATH, "HOME": home, "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        variables |= env or {}
        shutil.copy("/etc/resolv.conf", self.path / "etc" / "resolv.conf")
        root = shlex.quote(str(self.path))
        script = ["set -e", f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
        script.append(f"mount -t tmpfs -o mode=1777 none {root}/dev/shm")
        for outside, inside in (binds or {}).items():
            mount_point = self.path / inside.lstrip("/")
            mount_point.mkdir(parents=True, exist_ok=True)
            script.append(f"mount --bind {shlex.quote(str(outside))} {shlex.quote(str(mount_point))}")
        words = ["env", "-i", *(f"{key}={value}" for key, value in variables.items()), *command]
        if user != "root":
            words = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", *words]
        script.append(f"exec chroot {root} {shlex.join(words)}")
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        return subprocess.run(
            [*namespaces, "sh", "-c", "\n".join(script)], text=True, timeout=timeout, check=False, **run_options
        )

    def output_of(self, *command: str, **run_options: object) -> str:
        """Like run(), but returns standard output. If the command fails, raises an error with the end of the output."""
        done = self.run(*command, capture_output=True, **run_options)
        if done.returncode != 0:
            tail = (done.stdout + done.stderr).strip()[-2000:]
            raise ChrootError(f"in {self.path.name}: {shlex.join(command)} ended with {done.returncode}:\n{tail}")
        return done.stdout
