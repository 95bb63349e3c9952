"""Rule 8: the agent gives way to the trainer, and slows nothing else down."""

import json
import os
import pathlib
import signal
import subprocess
import time

import monitored
import pytest
from scraping import wait_until


def nice_of_session(pid: int) -> int:
    group = pathlib.Path(f"/proc/{pid}/autogroup")
    if not group.exists():
        pytest.skip("this kernel does not group sessions")
    return int(group.read_text().split()[-1])


@pytest.mark.parametrize("own_session", [True, False], ids=["of its own", "of the job"])
def test_the_agent_lowers_only_a_session_of_its_own(base, own_session):
    directory = base / "me"
    directory.mkdir(mode=0o700)
    agent = f"{monitored.FORESHOCK} agent --dir {directory} --port 0 --keep-alive"
    # The script of a job: it starts the agent beside the trainer. A kernel groups a session's processes.
    job = subprocess.Popen(
        ["sh", "-c", f"{'setsid ' if own_session else ''}{agent} & wait"],
        env=monitored.clean_environment(), start_new_session=True,
    )  # fmt: skip
    address = directory / "agent.json"
    wait_until(address.exists)
    pid = json.loads(address.read_text())["pid"]
    try:
        wait_until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19)
        if own_session:  # the session's turn comes right after the thread's
            wait_until(lambda: nice_of_session(pid) > 0)
        time.sleep(0.2)
        assert (nice_of_session(pid) > 0) == own_session
        assert nice_of_session(job.pid) == 0
    finally:
        os.kill(pid, signal.SIGTERM)
        job.wait()
