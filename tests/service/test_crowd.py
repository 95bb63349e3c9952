"""The agent beside clients that misbehave: Prometheus is served all the same, and memory stays flat."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from scraping import needs, prometheus, wait_until
from service import Service

HEAD = b"GET /metrics HTTP/1.1\r\nHost: node\r\n"
# 256 connections with 16 KiB of buffers each are 4 MiB; the rest is the allocator's and the sessions'.
MOST_KIB_MORE = 24 * 1024


def connect(service: Service) -> socket.socket:
    host, port = service.address.split(":")
    client = socket.create_connection((host, int(port)), timeout=10)
    client.settimeout(0.2)
    return client


def hold_a_thousand(service: Service) -> None:
    """Opens a thousand connections, half of which begin a request, and holds those that the server lets it hold."""
    clients = [connect(service) for _ in range(1000)]
    for client in clients[::2]:
        with_suppressed(client.send, HEAD)
    time.sleep(6)
    for client in clients:
        client.close()


def with_suppressed(call: Callable, *arguments: object) -> None:
    with contextlib.suppress(OSError):  # the server has closed it: that is what a full house does
        call(*arguments)


def read_slowly(service: Service) -> None:
    """Asks again and again without reading what comes."""
    clients = [connect(service) for _ in range(50)]
    token = f"Authorization: Bearer {service.token_file.read_text().strip()}\r\n\r\n".encode()
    for _ in range(30):
        for client in clients:
            with_suppressed(client.send, HEAD + token)
        time.sleep(0.2)
    for client in clients:
        client.close()


def send_a_gigabyte(service: Service) -> None:
    """A request of a gigabyte: once in the body that is announced, once in the head."""
    for head in (HEAD + b"Content-Length: 1073741824\r\n\r\n", HEAD + b"X: "):
        client, sent = connect(service), 0
        client.settimeout(5)
        with_suppressed(client.send, head)
        piece = b"x" * (1 << 20)
        with contextlib.suppress(OSError):
            while sent < 1 << 30:
                sent += client.send(piece)
        assert sent < 64 << 20, "the server has taken it"
        client.close()


@pytest.fixture
def scraped(service, start_trainer, tmp_path) -> Iterator[tuple]:
    trainer = start_trainer("ada", "job")
    trainer.do("hand.step(20)")
    wait_until(lambda: service.metric("attention_judged_total", run="ada/job"))
    credentials = f"{{type: Bearer, credentials_file: {service.token_file}}}"
    with prometheus(service.address, tmp_path, f"authorization: {credentials}", interval="2s", timeout="2s") as server:
        wait_until(lambda: server.query("up == 1"))
        yield service, server
    assert trainer.finish() == 0


@needs["prometheus"]
def test_prometheus_with_a_token_scrapes_whatever_others_do(scraped):
    service, server = scraped
    before = service.resident_kib()
    for crowd in (hold_a_thousand, read_slowly, send_a_gigabyte):
        begin = time.time()
        thread = threading.Thread(target=crowd, args=(service,))
        thread.start()
        thread.join()
        # Every scrape since then, the ones in the middle of it included.
        seconds = int(time.time() - begin) + 1
        wait_until(lambda: server.query("up == 1"))
        scrapes = server.query(f"count_over_time(up[{seconds}s])")
        failed = server.query(f"count_over_time(up[{seconds}s]) - sum_over_time(up[{seconds}s])")
        assert scrapes, "no scrape at all"
        assert float(failed[0]["value"][1]) == 0, f"{crowd.__name__}: a scrape failed"
        more = service.resident_kib() - before
        assert more < MOST_KIB_MORE, f"{crowd.__name__}: {more} KiB more"
    assert service.get("/healthz") == "ok\n"
