"""A command under the capabilities and the system call filter of a systemd unit, as systemd would start it."""

from __future__ import annotations

import ctypes
import errno
import pathlib
import re
import struct
import subprocess
from collections.abc import Callable

# <linux/seccomp.h>, <linux/filter.h>, <linux/prctl.h>
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 24, 38, 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, KILL_PROCESS, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000


def settings(unit: pathlib.Path, name: str) -> list[str]:
    """The values of a setting, in order; a unit may give one several times."""
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


def calls_of(word: str) -> set[str]:
    """A system call, or those of a group of systemd's."""
    if not word.startswith("@"):
        return {word}
    answer = subprocess.run(["systemd-analyze", "syscall-filter", word], capture_output=True, text=True, check=True)
    lines = [line.strip() for line in answer.stdout.splitlines()[1:]]
    return set().union(*(calls_of(line) for line in lines if line and not line.startswith("#")))


def allowed_calls(unit: pathlib.Path) -> set[str]:
    """As in systemd.exec(5): the first line decides that it is a list of what is allowed; "~" takes away again."""
    allowed = calls_of("@default")
    for line in settings(unit, "SystemCallFilter"):
        named = set().union(*(calls_of(word) for word in line.removeprefix("~").split()))
        allowed = allowed - named if line.startswith("~") else allowed | named
    return allowed


def numbers(header: str, prefix: str) -> dict[str, int]:
    """The constants of a header of this machine, without their prefix."""
    text = subprocess.run(
        ["cc", "-dM", "-E", "-include", header, "-"], input="", capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(rf"^#define {prefix}(\w+) (\d+)$", text, re.MULTILINE)
    return {name: int(number) for name, number in found}


def program(unit: pathlib.Path) -> bytes:
    """The filter: what is not allowed ends the process, or is refused with the unit's SystemCallErrorNumber."""
    (error,) = settings(unit, "SystemCallErrorNumber") or [""]
    otherwise = REFUSE | getattr(errno, error) if error else KILL_PROCESS
    code = [(LOAD_WORD, 0, 0, 0)]  # the number of the call
    known = numbers("sys/syscall.h", "__NR_")  # other machines have calls that this one lacks
    for number in sorted(known[name] for name in allowed_calls(unit) & known.keys()):
        code += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    code.append((RETURN, 0, 0, otherwise))
    return b"".join(struct.pack("HBBI", *one) for one in code)


def dropped_capabilities(unit: pathlib.Path) -> list[int]:
    kept = {name for line in settings(unit, "CapabilityBoundingSet") for name in line.split()}
    known = {name: number for name, number in numbers("linux/capability.h", "CAP_").items() if number < 64}
    return sorted(number for name, number in known.items() if f"CAP_{name}" not in kept)


def confine(unit: pathlib.Path) -> Callable[[], None]:
    """To be called in the child, by root, before it becomes the command."""
    code, dropped = program(unit), dropped_capabilities(unit)
    buffer = ctypes.create_string_buffer(code, len(code))
    description = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)

    def must(result: int) -> None:
        if result != 0 and ctypes.get_errno() != errno.EINVAL:  # a capability that this kernel lacks
            raise OSError(ctypes.get_errno(), "confining")

    def call(_keep: object = buffer) -> None:
        for number in dropped:
            must(libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0))
        must(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        must(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, description, 0, 0))

    return call
