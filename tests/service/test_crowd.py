"""The agent beside clients that misbehave: Prometheus is served all the same, and memory stays flat."""

import concurrent.futures
import contextlib
import pathlib
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from scraping import Prometheus, needs, prometheus, wait_until
from service import TOKEN, Service
from tiers import keep

HEAD = b"GET /metrics HTTP/1.1\r\nHost: node\r\n"
REQUEST = HEAD + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
CONNECTIONS = 256  # that the server holds at most
# 256 connections with 16 KiB of buffers each are 4 MiB; the rest is the allocator's and the sessions'.
MOST_KIB_MORE = 24 * 1024
GIGABYTE = 1 << 30
# What two socket buffers take that nobody reads (tcp_rmem and tcp_wmem: 6 and 4 MiB), with room.
MOST_SENT = 64 << 20


def connect(service: Service, receive_buffer: int = 0) -> socket.socket:
    host, port = service.address.split(":")
    client = socket.socket()
    if receive_buffer:  # the window is agreed on when the connection is made
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(60)
    client.connect((host, int(port)))
    client.settimeout(10)  # of a request that is not taken
    return client


def is_closed(client: socket.socket) -> bool:
    """Whether the server has given it up, whatever lies unread."""
    poll = select.poll()
    poll.register(client, select.POLLRDHUP)
    return bool(poll.poll(0))


def sockets_of(service: Service) -> int:
    count = 0
    for entry in pathlib.Path(f"/proc/{service.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            count += str(entry.readlink()).startswith("socket:")
    return count


@contextlib.contextmanager
def descriptors(count: int) -> Iterator[None]:
    """This process may open so many; a thousand is all that many systems allow at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def hold_a_thousand(service: Service, server: Prometheus) -> None:
    """A thousand connections stay open over three scrapes; half of them have begun a request."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(descriptors(2048))
        clients = [stack.enter_context(connect(service)) for _ in range(1000)]
        begin = time.time()
        for client in clients[::2]:
            with contextlib.suppress(OSError):  # the server has closed it: that is what a full house does
                client.send(HEAD)
        wait_until(lambda: scrapes_since(server, begin) >= 3)
        # With the one that listens and one of Prometheus.
        assert sockets_of(service) <= CONNECTIONS + 2
        kept = sum(not is_closed(client) for client in clients)
        assert kept <= CONNECTIONS, f"{kept} are still open"


def read_slowly(service: Service, server: Prometheus) -> None:
    """Fifty ask for page after page and read a byte now and then: each is dropped."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(service, receive_buffer=4096)) for _ in range(50)]
        asked = REQUEST * 1000  # more answers than the buffers between hold
        for client in clients:
            client.setblocking(False)
            client.send(asked)

        def all_are_dropped() -> bool:
            for client in clients:
                with contextlib.suppress(OSError):
                    client.recv(1)
            return all(map(is_closed, clients))

        wait_until(all_are_dropped)


def send_a_gigabyte(service: Service, server: Prometheus) -> None:
    """A gigabyte in one request: announced, in pieces, and as a head; four of each at once."""
    heads = (HEAD + b"Content-Length: 1073741824\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\n", HEAD + b"X: ")
    piece = b"x" * (1 << 20)
    pieces = {heads[1]: b"100000\r\n" + piece + b"\r\n"}

    def send(head: bytes) -> int:
        sent = 0
        with connect(service) as client, contextlib.suppress(OSError):  # closed, or full: it is not taken
            client.sendall(head)
            while sent < GIGABYTE:
                sent += client.send(pieces.get(head, piece))
        return sent

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        for head, sent in zip(heads * 4, pool.map(send, heads * 4), strict=True):
            assert sent < MOST_SENT, f"{sent} bytes were taken after {head!r}"


def scrapes_since(server: Prometheus, begin: float) -> int:
    found = server.query(f"count_over_time(up[{max(1, int(time.time() - begin))}s])")
    return int(found[0]["value"][1]) if found else 0


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
@pytest.mark.parametrize("crowd", keep([hold_a_thousand, read_slowly, send_a_gigabyte], hold_a_thousand, read_slowly))
def test_prometheus_with_a_token_scrapes_whatever_others_do(scraped, crowd: Callable):
    service, server = scraped
    before = service.resident_kib()
    service.forget_peak()
    failures = []
    # A busy machine is late for a scrape now and then; a server that a crowd delays is so each time.
    while len(failures) < 3 and 0 not in failures:
        begin = time.time()
        crowd(service, server)
        # Every scrape since then, those in the middle of it and the next one included.
        wait_until(lambda: scrapes_since(server, begin) >= 2)  # noqa: B023
        window = f"[{int(time.time() - begin)}s]"
        failed = server.query(f"count_over_time(up{window}) - sum_over_time(up{window})")
        failures.append(float(failed[0]["value"][1]))
    assert 0 in failures, "scrapes failed, or took longer than the two seconds between them"
    more = service.peak_kib() - before
    assert more < MOST_KIB_MORE, f"{more} KiB more"
    assert service.get("/healthz") == "ok\n"
