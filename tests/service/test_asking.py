"""`foreshock status` and `doctor` ask the agent of a run for that run, and show it the token that it wants."""

import contextlib
import http.server
import json
import os
import pathlib
import subprocess
import threading
from collections.abc import Iterator

import monitored
import pytest
from scraping import wait_until
from service import TOKEN


def ask(base: pathlib.Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    command = [str(monitored.FORESHOCK), *words]
    given = monitored.clean_environment(FORESHOCK_DIR=str(base), **environment)
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=60)


def test_status_tells_the_users_own_run_of_a_service(service, start_trainer, tree):
    trainers = {"ada": start_trainer("ada", "job")}
    trainers["bob"] = start_trainer("bob", "job")
    for user, steps in (("ada", 5), ("bob", 7)):
        trainers[user].do(f"hand.step({steps})")
        wait_until(lambda: service.metric("steps_total", run=f"{user}/job") == steps)  # noqa: B023

    def told(user: str, *words: str, **environment: str) -> dict:
        (state,) = json.loads(ask(tree / user, "status", "--json", *words, **environment).stdout)
        return state

    for user, steps in (("ada", 5), ("bob", 7)):  # the one that came last and the other
        state = wait_until(
            lambda: (state := told(user, "--token-file", str(service.token_file)))["ranks"] and state  # noqa: B023
        )
        assert (state["run"], state["ranks"][0]["steps"]) == (f"{user}/job", steps)
        assert told(user, FORESHOCK_TOKEN_FILE=str(service.token_file))["run"] == f"{user}/job"
    page = ask(tree / "ada", "status", "--token-file", str(service.token_file)).stdout
    assert f"http://{service.address}/#run=ada%2Fjob\n" in page

    without = ask(tree / "ada", "status", "--json")
    assert without.returncode == 3
    assert "answered 401" in json.loads(without.stdout)[0]["reason"]
    assert "--token-file" in json.loads(without.stdout)[0]["reason"]
    service.token_file.chmod(0o644)
    readable = told("ada", "--token-file", str(service.token_file))
    assert "answered 401" in readable["reason"]
    assert "chmod 600" in readable["reason"]


class Agent(http.server.BaseHTTPRequestHandler):
    """Keeps what it is asked, and tells of a run whose tensors are not followed."""

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        rank = {"rank": 0, "weights": {"unfollowed": {"flat": 3}}}
        body = json.dumps({"schema": 1, "run": "ada/job", "state": "running", "ranks": [rank]}).encode()
        status = 200 if self.headers.get("Authorization") == f"Bearer {TOKEN}" else 401
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def agent_of(directory: pathlib.Path, run: str | None) -> Iterator[list[tuple[str, str]]]:
    """Stands in for the agent of this run; what it is asked."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Agent) as server:
        server.asked = []
        directory.mkdir()
        address = {"pid": os.getpid(), "address": "127.0.0.1", "port": server.server_address[1]}
        (directory / "agent.json").write_text(json.dumps(address | ({} if run is None else {"run": run})))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.asked
        server.shutdown()


@pytest.mark.parametrize(
    ("run", "path"),
    [("ada/job", "?run=ada%2Fjob"), ("a&run=b%#+\u00e4 c", "?run=a%26run%3Db%25%23%2B%C3%A4%20c"), (None, "")],
)
def test_status_names_the_run_and_sends_the_token(tree, tmp_path, run, path):
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    base = tree / "ada"
    base.mkdir(mode=0o700)
    with agent_of(base / "job", run) as asked:
        assert ask(base, "status", "--json", "--token-file", str(token)).returncode == 0
        assert asked == [(f"/api/v1/state{path}", f"Bearer {TOKEN}")]
        assert ask(base, "status", "--json").returncode == 3, "an agent that refuses is reported"
        assert asked[-1] == (f"/api/v1/state{path}", None)
        ask(base, "doctor", "--python", str(tmp_path / "none"))
        assert len(asked) == 2, "doctor speaks of its command, and of no live run"
