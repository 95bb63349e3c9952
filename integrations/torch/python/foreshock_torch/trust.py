"""Whether other users could replace a library before the training loads it. libmonitor/trusted_path.h has the rule."""

from __future__ import annotations

import os
import stat

MOST_LINKS = 40  # as many as the kernel follows
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
    return stat.S_ISLNK(status.st_mode) or is_sticky or not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_user_namespace() -> bool:
    """Whether this process is in a user namespace that does not map all users."""
    with open("/proc/self/uid_map") as file:
        return file.read().split() != ["0", "0", "4294967295"]
