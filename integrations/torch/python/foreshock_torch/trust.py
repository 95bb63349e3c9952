"""Whether other users could replace a library before the training loads it. libmonitor/trusted_path.h has the rule."""

from __future__ import annotations

import os
import stat

MOST_LINKS = 40  # as many as the kernel follows
USERS, GROUPS = "/etc/passwd", "/etc/group"  # read directly: the C library may ask a server
OVERFLOW_USER = 65534  # owns, as a user namespace shows it, what belongs to a user outside, such as root


def is_trusted(path: str) -> bool:
    """Whether only this user and root can replace the file at `path`, which must exist: it, each link on the way
    and each folder above belong to one of them, and none is writable by others, except sticky folders such as /tmp."""
    where, rest, links = "/", os.path.join(os.getcwd(), path).split("/"), 0
    try:
        while links <= MOST_LINKS:
            status = os.lstat(where)
            if not _is_ours(status):
                return False
            if stat.S_ISLNK(status.st_mode):
                links += 1
                target = os.readlink(where)
                rest = target.split("/") + rest
                where = "/" if target.startswith("/") else os.path.dirname(where)
            elif rest:
                name = rest.pop(0)
                where = os.path.dirname(where) if name == ".." else os.path.join(where, name if name != "." else "")
                where = where.rstrip("/") or "/"
            else:
                return True
    except OSError:
        pass
    return False


def _is_ours(status: os.stat_result) -> bool:
    if status.st_uid not in (0, os.geteuid()) and not (status.st_uid == OVERFLOW_USER and _is_user_namespace()):
        return False
    is_sticky = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)
    if stat.S_ISLNK(status.st_mode) or is_sticky or not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return True
    return not status.st_mode & stat.S_IWOTH and _is_private_group(status.st_gid, status.st_uid)


def _is_private_group(group: int, owner: int) -> bool:
    """Whether `owner` is the only user whose group this is, and the only member that is added to it."""
    users = [line for line in _accounts(USERS) if line[3] == str(group)]
    groups = [line for line in _accounts(GROUPS) if line[2] == str(group)]
    if not users or not groups or any(line[2] != str(owner) for line in users):
        return False
    return all(line[3] in ("", users[-1][0]) for line in groups)


def _accounts(path: str) -> list[list[str]]:
    """The lines of /etc/passwd or /etc/group: name, password, number, then the user's group or the group's members."""
    with open(path, errors="surrogateescape") as file:
        lines = [line.rstrip("\n").split(":") for line in file]
    return [line for line in lines if len(line) > 3]


def _is_user_namespace() -> bool:
    """Whether this process is in a user namespace that does not map all users."""
    with open("/proc/self/uid_map") as file:
        return file.read().split() != ["0", "0", "4294967295"]
