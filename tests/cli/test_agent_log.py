"""The log of an agent lies in shared memory, and commands of --on-alert write into it: it stays bounded."""

import os
import signal
import subprocess

import monitored
from scraping import wait_until

KIB = 1024


def test_a_log_that_has_become_long_is_cut_and_its_end_kept(base):
    directory = base / "me"
    directory.mkdir(mode=0o700)
    log, older = directory / "agent.log", directory / "agent.log.1"
    log.write_text("".join(f"line {n} of a command that says much\n" for n in range(40000)))
    command = [str(monitored.FORESHOCK), "agent", "--dir", str(directory), "--run-id", "me", "--keep-alive"]
    with log.open("a") as output:
        agent = subprocess.Popen(
            [*command, "--port", "0"], env=monitored.clean_environment(), stdout=output, stderr=output
        )
    try:
        wait_until(older.exists)
        wait_until(lambda: "agent.log.1" in log.read_text())
        assert log.stat().st_size < 16 * KIB
        assert older.stat().st_size == 256 * KIB
        assert "line 39999 of a command that says much\n" in older.read_text()
        os.truncate(older, 0)
        with log.open("a") as output:
            output.write("x" * 300 * KIB)
        wait_until(lambda: older.stat().st_size == 256 * KIB)
    finally:
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(120) == 0
