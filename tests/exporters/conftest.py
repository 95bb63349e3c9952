"""For the tests of the status page: a server with a state and histories, and a browser that shows it."""

import json
import subprocess

import browser
import pytest
from monitored import BUILD
from status_page import LIVE, sample_state

RANKS, LAYERS = 8, 96


@pytest.fixture
def serve(tmp_path):
    """serve(state, ranks, layers, *runs): the address of a page with this state and histories of that size."""
    servers = []

    def start(state: dict, ranks: int = 0, layers: int = 0, *runs: str) -> str:
        file = tmp_path / f"state{len(servers)}.json"
        file.write_text(json.dumps(state))
        words = [str(BUILD / "bin" / "serve_sample"), str(file), str(ranks), str(layers), *(runs or [state["run"]])]
        servers.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        host, port = servers[-1].stdout.readline().split()
        return f"http://{host}:{port}"

    yield start
    for server in servers:
        server.terminate()
        server.wait(timeout=120)
        server.stdin.close()
        server.stdout.close()


@pytest.fixture
def page(serve, tab):
    """page(ranks, layers, state, **how): the tab with such a page, once it is live and has drawn."""

    def open_page(
        ranks: int = RANKS, layers: int = LAYERS, state: dict | None = None, **how: object
    ) -> browser.Browser:
        address = serve(state or sample_state(ranks, layers), ranks, layers)
        tab.open(address + "/", **how)
        tab.wait_for(LIVE)
        return tab

    yield open_page
    tab.value("0")  # whatever it has said meanwhile
    tab.leave()
    assert tab.console == []
    origins = {"/".join(address.split("/")[:3]) for address in tab.requests}
    assert len(origins) == 1, f"something outside was asked for: {origins}"
