"""A service that has no descriptor left for one more run."""

import os
import pathlib
import resource
import time

from scraping import wait_until
from service import Service


def lasting_descriptors(service: Service) -> set[int]:
    """Those that are open whenever one looks: others belong to a moment's work."""
    looks = []
    for _ in range(50):
        looks.append({int(entry.name) for entry in pathlib.Path(f"/proc/{service.process.pid}/fd").iterdir()})
        time.sleep(0.05)
    return set.intersection(*looks)


def leave_free(service: Service, count: int) -> None:
    """The process can have so many more descriptors."""
    held, limit = lasting_descriptors(service), 0
    while count > 0 or limit in held:
        count -= limit not in held
        limit += 1
    _, most = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (limit, most))


def test_a_run_whose_lock_cannot_be_opened_waits_and_is_followed_later(service, tree):
    """Its directory has long been as it is, so that nothing but the shortage is a reason to look at it again."""
    hidden, run = tree / ".job", tree / "job"
    hidden.mkdir()
    (hidden / "run.lock").touch()
    os.utime(hidden, (1000, 1000))
    before = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
    leave_free(service, 2)  # for the directory and for a second hold on it, and none for its lock
    hidden.rename(run)
    wait_until(lambda: "job has to wait: no descriptor left (ulimit -n)" in service.log.read_text())
    assert os.stat(run).st_mtime == 1000, "nothing was made in it"
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, before)
    wait_until((run / "agent.json").exists)
    assert "not followed" not in service.log.read_text()
