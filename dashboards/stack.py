"""Everything around a training on this machine: agent, Prometheus with our rules, Alertmanager with our routes.

    python dashboards/stack.py [--interval S] [--seconds S] [--stay] [-- COMMAND…]

`./dev stack` calls it. All of it listens on 127.0.0.1 only and ends with the training, or with Ctrl-C when told to
stay; data lies in build/stack until the next start. Notifications go to this program, which prints them. Standard
library only.
"""

import argparse
import contextlib
import http.server
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request

from alertmanager import alertmanager_yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
DEMO = [sys.executable, str(ROOT / "integrations" / "torch" / "demo" / "train.py")]
PATIENCE = 30  # seconds until a server must answer


def say(text: str) -> None:
    print(f"stack: {text}", flush=True)


def port_from(first: int) -> int:
    """The first free port from there on."""
    for port in range(first, first + 50):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise SystemExit(f"stack: no free port from {first} on; end what holds them")


class Notifications(http.server.BaseHTTPRequestHandler):
    """Prints what Alertmanager tells: to whom, and which alerts."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        for name in sorted({alert["labels"]["alertname"] for alert in body["alerts"]}):
            alerts = [alert for alert in body["alerts"] if alert["labels"]["alertname"] == name]
            say(f"{alerts[0]['status']}, to {self.path.strip('/')}: {name}: {alerts[0]['annotations']['description']}")

    def log_message(self, *_words: object) -> None:
        pass


@contextlib.contextmanager
def receiver():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Notifications)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def serving(command: list[str], folder: pathlib.Path, ready: str):
    """`command` until the block ends; it begins once `ready` answers."""
    name = pathlib.Path(command[0]).name
    if shutil.which(command[0]) is None:
        raise SystemExit(f"stack: {name} is not installed; install the package {name}")
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(ready, timeout=2):
                break
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"stack: {name} does not answer; its last words are in {folder / name}.log")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)


def write_prometheus(folder: pathlib.Path, interval: int, alertmanager: int) -> None:
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {interval}s, evaluation_interval: {interval}s, scrape_timeout: {interval}s}}\n"
        f"rule_files: ['{HERE / 'rules' / 'foreshock.yml'}']\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{alertmanager}']}}]}}]}}\n"
        "scrape_configs:\n- job_name: foreshock\n"
        f"  file_sd_configs: [{{files: ['{folder / 'targets.json'}'], refresh_interval: 5s}}]\n"
    )


def write_alertmanager(folder: pathlib.Path, receiver_port: int) -> None:
    values = tomllib.loads((HERE / "values.toml").read_text())
    values["receivers"] = {name: f"http://127.0.0.1:{receiver_port}/{name}" for name in values["receivers"]}
    (folder / "alertmanager.yml").write_text(alertmanager_yaml(values))


def train(command: list[str], folder: pathlib.Path, foreshock: pathlib.Path) -> int:
    """Its exit status. SIGTERM ends it as Ctrl-C does."""
    line = [str(foreshock), "run", "--file-sd", str(folder / "targets.json"), "--", *command]
    training = subprocess.Popen(line, cwd=ROOT)
    signal.signal(signal.SIGTERM, lambda *_: training.send_signal(signal.SIGINT))
    while True:
        try:
            return training.wait()
        except KeyboardInterrupt:
            continue  # the terminal has told it too


def show_where(prometheus: int, alertmanager: int, interval: int) -> None:
    server = f"http://127.0.0.1:{prometheus}"
    say(f"Prometheus    {server}/graph?g0.expr=foreshock_loss&g0.tab=0   (scrapes every {interval} s)")
    say(f"alerts        {server}/alerts")
    say(f"Alertmanager  http://127.0.0.1:{alertmanager}")
    say("the page of the run is told below; notifications are printed here")
    say(f"a Grafana:    import {HERE / 'grafana'}/*.json, data source {server}")


def main() -> int:
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interval", type=int, default=5, help="seconds between two scrapes, and two evaluations")
    parser.add_argument("--seconds", type=int, default=300, help="how long the demo trains")
    parser.add_argument("--stay", action="store_true", help="keep the servers after the training, until Ctrl-C")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "stack", help="emptied first")
    options, command = parser.parse_args(words[:at]), words[at + 1 :]
    build = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release"))
    folder = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        write_alertmanager(folder, stack.enter_context(receiver()))
        alertmanager, prometheus = port_from(9093), port_from(9090)
        write_prometheus(folder, options.interval, alertmanager)
        base = f"http://127.0.0.1:{alertmanager}"
        line = ["prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml", "--cluster.listen-address="]
        line += [f"--storage.path={folder}/alertmanager", f"--web.listen-address=127.0.0.1:{alertmanager}"]
        stack.enter_context(serving(line, folder, f"{base}/-/ready"))
        line = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/prometheus"]
        line += [f"--web.listen-address=127.0.0.1:{prometheus}"]
        stack.enter_context(serving(line, folder, f"http://127.0.0.1:{prometheus}/-/ready"))
        show_where(prometheus, alertmanager, options.interval)
        status = train(command or [*DEMO, "--seconds", str(options.seconds)], folder, build / "bin" / "foreshock")
        if options.stay:
            say("the training has ended; Ctrl-C ends Prometheus and Alertmanager")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    return status


if __name__ == "__main__":
    sys.exit(main())
