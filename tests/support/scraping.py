"""Clients of an exporter: plain HTTP, Prometheus itself, and a crowd that never finishes its request."""

import contextlib
import json
import pathlib
import random
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator

import pytest

needs = {
    name: pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed")
    for name in ("promtool", "prometheus", "amtool", "prometheus-alertmanager")
}


@contextlib.contextmanager
def ended(process: subprocess.Popen) -> Iterator[subprocess.Popen]:
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def get(url: str, timeout: float = 60) -> str:
    with urllib.request.urlopen(url, timeout=timeout) as reply:
        return reply.read().decode()


def wait_until(what: Callable[[], object], seconds: float = 300, of: subprocess.Popen | None = None) -> object:
    """What `what` gives once that is something. Not awaited further when the process `of` has ended."""
    end = time.monotonic() + seconds
    refused = None
    while True:
        try:
            if result := what():
                return result
        except OSError as error:
            refused = error
        if of is not None and of.poll() is not None:
            out, errors = of.communicate()
            pytest.fail(f"ended with {of.returncode} while awaited\n{out or ''}\n{errors or ''}")
        assert time.monotonic() < end, f"waited {seconds:.0f} s in vain; last error: {refused!r}"
        time.sleep(0.2)


def free_port() -> int:
    """A port below those that the kernel chooses for connections and for servers (ip_local_port_range): one of them
    could take the port before the program that it is meant for."""
    first_of_kernel = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(first_of_kernel // 2, first_of_kernel)
        with socket.socket() as probe, contextlib.suppress(OSError):  # in use
            probe.bind(("127.0.0.1", port))
            return port


def promtool_complaints(metrics: str) -> str:
    """What `promtool check metrics` says; empty when all is well."""
    checked = subprocess.run(["promtool", "check", "metrics"], input=metrics, text=True, capture_output=True)
    return checked.stdout + checked.stderr + (f"status {checked.returncode}" if checked.returncode else "")


class Prometheus:
    """A real one that scrapes `address` twice a second."""

    def __init__(self, base: str) -> None:
        self.base = base

    def query(self, expression: str) -> list[dict]:
        reply = json.loads(get(f"{self.base}/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
        return reply["data"]["result"]

    def get(self, path: str) -> dict:
        return json.loads(get(self.base + path))

    def wait_for_scrapes(self, count: int) -> None:
        wait_until(lambda: self.query(f"count_over_time(up[1m]) >= {count}"))


@contextlib.contextmanager
def prometheus(
    address: str,
    folder: pathlib.Path,
    *more: str,
    rules: pathlib.Path | None = None,
    interval: str = "500ms",
    timeout: str = "400ms",
) -> Iterator[Prometheus]:
    """`more`: lines of the scrape configuration; with an empty address they say where the targets are."""
    port = free_port()
    lines = [f"static_configs: [{{targets: ['{address}']}}]"] if address else []
    config = folder / "prometheus.yml"
    config.write_text(
        f"scrape_configs:\n- job_name: foreshock\n  scrape_interval: {interval}\n  scrape_timeout: {timeout}\n"
        + "".join(f"  {line}\n" for line in [*lines, *more])
        + (f"global: {{evaluation_interval: 1s}}\nrule_files: ['{rules}']\n" if rules else "")
    )
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    with ended(server):
        yield Prometheus(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def half_open_clients(address: str, count: int = 100) -> Iterator[None]:
    """Connections that say nothing, or half a request, and stay."""
    host, port = address.split(":")
    clients = [socket.create_connection((host, int(port))) for _ in range(count)]
    try:
        for client in clients[1::2]:
            client.send(b"GET /metrics HTTP/1.1\r\nHost: local")
        yield
    finally:
        for client in clients:
            client.close()


def scrape_milliseconds(address: str, count: int = 20, pause: float = 0.02) -> list[float]:
    """How long each of `count` scrapes took, sorted."""
    times = []
    for _ in range(count):
        begin = time.monotonic()
        get(f"http://{address}/metrics")
        times.append((time.monotonic() - begin) * 1e3)
        time.sleep(pause)
    return sorted(times)
