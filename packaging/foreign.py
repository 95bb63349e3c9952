"""Root directories with Python for another processor, and commands in them under qemu. No root rights are needed.

The directory has the files of Debian's packages. Commands run in a user namespace, in which Linux 6.7 and later starts
programs of the other processor with qemu (binfmt_misc), also those that a command starts. Nothing is registered for the
rest of the machine.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import dependencies

# By processor: the first bytes of its programs and the bits of them that count, as binfmt_misc takes them.
MAGIC = {
    "aarch64": r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:"
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
}
FORMATS = "/proc/sys/fs/binfmt_misc"
PYTHON = "python3.11"  # of Debian 12
PACKAGES = ["libc6", "libgcc-s1", "libstdc++6", "libgomp1", "zlib1g", "libexpat1", "libffi8", "libssl3", "libbz2-1.0"]
PACKAGES += ["liblzma5", "libsqlite3-0", "libuuid1", "libcrypt1", "dash"]
PACKAGES += [f"{PYTHON}-minimal", f"lib{PYTHON}-minimal", f"lib{PYTHON}-stdlib"]
MODULES = Path("usr/lib/python3/dist-packages")  # in the root


def make_root(machine: str) -> Path:
    """Returns the root directory for `machine`, which is made at the first call."""
    work = dependencies.ROOT / "build" / f"foreign-{machine}"
    with dependencies.locked(work):
        root = work / "root"
        if not (root / "ready").exists():
            shutil.rmtree(root, ignore_errors=True)
            lines = [f"deb {line}" for line in dependencies.archives()]
            dependencies.download(PACKAGES, lines, work / "packages", machine)
            (work / "packages" / "root").rename(root)
            for folder in ("proc", "dev", "tmp", MODULES):
                (root / folder).mkdir(parents=True, exist_ok=True)
            (root / "ready").touch()
        return root


def why_not(machine: str) -> str:
    """Why this machine cannot run commands in such a root; "" if it can."""
    qemu = f"qemu-{machine}-static"
    if shutil.which(qemu) is None:
        return f"no {qemu} here (package qemu-user-static)"
    command = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "binfmt_misc", "none", FORMATS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"binfmt_misc needs Linux 6.7: {done.stderr.strip()}" if done.returncode != 0 else ""


def run(
    machine: str, root: Path, command: list[str], env: Mapping[str, str], binds: Mapping[Path, str], **options: object
) -> subprocess.CompletedProcess[str]:
    """Runs `command` in `root` with `env` and the folders `binds` (path outside: path inside). `options` are those of
    subprocess.run()."""
    # P: the program keeps its own first argument. F: qemu is opened now, since the root has none.
    entry = f":qemu-{machine}:M::{MAGIC[machine]}:{shutil.which(f'qemu-{machine}-static')}:PF"
    script = ["set -e", f"mount -t binfmt_misc none {FORMATS}", f"printf %s '{entry}' >{FORMATS}/register"]
    inside = shlex.quote(str(root))
    script += [f"mount -t proc proc {inside}/proc", f"mount --rbind /dev {inside}/dev"]
    script.append(f"mount -t tmpfs -o mode=1777 none {inside}/dev/shm")
    for outside, path in binds.items():
        place = root / path.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        script.append(f"mount --bind {shlex.quote(str(outside))} {shlex.quote(str(place))}")
    script.append(f"exec chroot {shlex.quote(str(root))} {shlex.join(command)}")
    namespaces = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
    variables = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", **env}
    return subprocess.run(
        [*namespaces, "sh", "-c", "\n".join(script)], env=variables, text=True, check=False, **options
    )
