"""An agent that serves a tree of runs: `foreshock agent --tree`, with a token and a target file."""

import json
import os
import pathlib
import subprocess
import urllib.request
from collections.abc import Callable

import live
import monitored
from scraping import wait_until

TOKEN = "an-example-of-a-token"
SYSTEM_PYTHON = "/usr/bin/python3"


class Service:
    """`foreshock agent --tree`: its process, where it answers, what it has said."""

    def __init__(
        self, tree: pathlib.Path, folder: pathlib.Path, *options: str, confine: Callable[[], None] | None = None
    ) -> None:
        self.tree, self.token_file, self.file_sd = tree, folder / "token", folder / "targets.json"
        self.log = folder / "agent.log"
        self.token_file.write_text(TOKEN + "\n")
        self.token_file.chmod(0o600)
        command = [str(monitored.FORESHOCK), "agent", "--tree", str(tree), "--port", "0"]
        command += ["--token-file", str(self.token_file), "--file-sd", str(self.file_sd), *options]
        with self.log.open("a") as log:
            environment = monitored.clean_environment()
            # In a session of its own, as under systemd: the agent is nice, and kernels compare that within a session.
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, preexec_fn=confine, start_new_session=True
            )
        try:
            wait_until(lambda: self.process.poll() is not None or self.file_sd.exists())
            assert self.process.poll() is None, self.log.read_text()
        except AssertionError:
            self.process.kill()
            raise
        # The first is the agent itself; others may be those of runs that have one of their own.
        (self.address,) = json.loads(self.file_sd.read_text())[0]["targets"]

    def get(self, path: str) -> str:
        request = urllib.request.Request(f"http://{self.address}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.read().decode()

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of the series with at least these labels; None when there is none."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        for line in self.get("/metrics").splitlines():
            if line.startswith(f"foreshock_{name}{{") and all(pair in line for pair in wanted):
                return float(line.rsplit(" ", 1)[1])
        return None

    def resident_kib(self) -> int:
        return self._status_kib("VmRSS")

    def peak_kib(self) -> int:
        """The most that was resident since forget_peak()."""
        return self._status_kib("VmHWM")

    def forget_peak(self) -> None:
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _status_kib(self, field: str) -> int:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{field}:")[1].split()[0])


def runs_as(uid: int) -> bool:
    """Whether the tests may start processes of another user that reach the tree of this repository."""
    if os.geteuid() != 0 or not pathlib.Path(SYSTEM_PYTHON).exists():
        return False
    command = [SYSTEM_PYTHON, "-c", f"open({live.__file__!r}); open({str(monitored.FORESHOCK)!r}, 'rb')"]
    return subprocess.run(command, user=uid, group=uid, extra_groups=[], stderr=subprocess.DEVNULL).returncode == 0
