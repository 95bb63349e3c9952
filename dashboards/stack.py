"""Runs everything around a training on this machine: agent, Prometheus with our rules, Alertmanager with our routes.

    python dashboards/stack.py [--interval S] [--seconds S] [--stay] [--expect-silence] [-- COMMAND…]

`./dev stack` calls this program. Without COMMAND it trains the demo. All servers listen on 127.0.0.1 only. They end
with the training (with --stay: at Ctrl-C), and at SIGTERM or SIGHUP. Data stays in build/stack until the next start.
This program receives Alertmanager's notifications, prints them and appends them to build/stack/notifications.jsonl.
"""

import argparse
import contextlib
import fcntl
import http.server
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import urllib.parse
import urllib.request

from alertmanager import alertmanager_yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
DEMO = [sys.executable, str(ROOT / "integrations" / "torch" / "demo" / "train.py")]
TIMEOUT_S = 30  # seconds in which a server must answer, and in which a process must end after a signal
END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # the signals that end this program, besides Ctrl-C


def say(text: str) -> None:
    print(f"stack: {text}", flush=True)


def end_with_signals() -> None:
    """From now on, SIGTERM and SIGHUP raise SystemExit, so that the context managers end all started processes."""

    def leave(number: int, _: object) -> None:
        for each in END_SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
        raise SystemExit(128 + number)

    for each in END_SIGNALS:
        if signal.getsignal(each) != signal.SIG_IGN:  # under nohup, SIGHUP is ignored and stays so
            signal.signal(each, leave)


@contextlib.contextmanager
def held_signals():
    """Delays signals until the end of the block, in which the caller starts a process and assigns it to a variable.
    Without the delay, a signal between start and assignment would end this program but not the process."""
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (*END_SIGNALS, signal.SIGINT)}
    handlers = {number: handler for number, handler in handlers.items() if handler != signal.SIG_IGN}
    for each in handlers:
        signal.signal(each, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    for number in received:
        signal.raise_signal(number)


def end(process: subprocess.Popen, *signals: int) -> None:
    """Sends the signals one after the other until the process ends, and waits TIMEOUT_S seconds after each. Kills the
    process if it has not ended after the last signal, or if Ctrl-C interrupts the waiting."""
    try:
        for number in signals:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=TIMEOUT_S)
                return
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def port_from(first: int) -> int:
    """The first free port from `first` on."""
    for port in range(first, first + 50):
        with socket.socket() as probe:
            # Connections of an ended server, which the kernel keeps for a while, do not make its port taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise SystemExit(f"stack: no free port from {first} on; end what holds them")


@contextlib.contextmanager
def port_lock():
    """A lock that one stack of a user holds at a time, from the choice of free ports until servers listen on them."""
    with (pathlib.Path(tempfile.gettempdir()) / f"foreshock-stack-{os.getuid()}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class NotificationHandler(http.server.BaseHTTPRequestHandler):
    """Prints receiver and alerts of each notification of Alertmanager, and appends it to `log`."""

    log: pathlib.Path  # set by receiver()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        receiver_name = self.path.strip("/")  # from the URL, which write_alertmanager_config() sets
        with self.log.open("a") as file:
            file.write(json.dumps({"to": receiver_name, "time": time.time()} | body) + "\n")
        group = ", ".join(f"{name} {text}" for name, text in body["groupLabels"].items() if text)
        say(f"a notification to {receiver_name}, {body['status']}, {group}:")
        for name in sorted({alert["labels"]["alertname"] for alert in body["alerts"]}):
            texts = next(a["annotations"] for a in body["alerts"] if a["labels"]["alertname"] == name)
            say(f"  {name}: {texts['summary']}. {texts['description']} See docs/runbook.md#{name.lower()}")

    def log_message(self, *_words: object) -> None:
        """Does not log requests."""


@contextlib.contextmanager
def receiver(folder: pathlib.Path):
    """Receives notifications on a free port until the block ends. Yields the port."""
    handler = type("Handler", (NotificationHandler,), {"log": folder / "notifications.jsonl"})
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)  # one thread, so that lines stay whole
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def serving(command: list[str], folder: pathlib.Path, ready_url: str):
    """Runs the server `command` until the block ends. Enters the block once `ready_url` answers."""
    name = pathlib.Path(command[0]).name
    if shutil.which(command[0]) is None:
        raise SystemExit(f"stack: {name} is not installed; install the package {name}")
    process = None
    try:
        with (folder / f"{name}.log").open("w") as log, held_signals():
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            time.sleep(0.2)
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"stack: {name} does not answer; its last words are in {folder / name}.log")
            with contextlib.suppress(OSError), urllib.request.urlopen(ready_url, timeout=2):
                break
        yield
    finally:
        if process:
            end(process, signal.SIGTERM)


def write_prometheus_config(folder: pathlib.Path, interval: int, alertmanager_port: int, own_port: int) -> None:
    """Prometheus reads the agents' addresses from targets.json, which `foreshock run --file-sd` writes (train())."""
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {interval}s, evaluation_interval: {interval}s, scrape_timeout: {interval}s}}\n"
        f"rule_files: ['{HERE / 'rules' / 'foreshock.yml'}']\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{alertmanager_port}']}}]}}]}}\n"
        "scrape_configs:\n- job_name: foreshock\n"
        f"  file_sd_configs: [{{files: ['{folder / 'targets.json'}'], refresh_interval: 5s}}]\n"
        f"- {{job_name: prometheus, static_configs: [{{targets: ['127.0.0.1:{own_port}']}}]}}\n"
    )


def write_alertmanager_config(folder: pathlib.Path, receiver_port: int) -> None:
    """Alertmanager sends the notifications for all receivers to this program (receiver())."""
    values = tomllib.loads((HERE / "values.toml").read_text())
    values["receivers"] = {name: f"http://127.0.0.1:{receiver_port}/{name}" for name in values["receivers"]}
    (folder / "alertmanager.yml").write_text(alertmanager_yaml(values))


def train(command: list[str], folder: pathlib.Path, foreshock: pathlib.Path) -> int:
    """Runs the training under the program `foreshock` and returns its exit status. If SIGTERM or SIGHUP ends this
    program, the training receives SIGINT and, if it does not end, SIGTERM."""
    outputs = ["--file-sd", str(folder / "targets.json"), "--record", str(folder / "record.jsonl")]
    full_command = [str(foreshock), "run", *outputs, "--", *command]
    training = None
    try:
        with held_signals():
            training = subprocess.Popen(full_command, cwd=ROOT)
        while True:
            try:
                return training.wait()
            except KeyboardInterrupt:
                continue  # the terminal has sent Ctrl-C to the training as well, which ends then
    finally:
        if training:
            end(training, signal.SIGINT, signal.SIGTERM)


def show_addresses(prometheus: int, alertmanager: int, interval: int) -> None:
    server = f"http://127.0.0.1:{prometheus}"
    say(f"Prometheus    {server}/graph?g0.expr=foreshock_loss&g0.tab=0   (scrapes every {interval} s)")
    say(f"alerts        {server}/alerts")
    say(f"Alertmanager  http://127.0.0.1:{alertmanager}")
    say("the address of the run's page follows; notifications are printed here")
    say(f"a Grafana:    import {HERE / 'grafana'}/*.json, data source {server}")


def query(prometheus_port: int, expression: str) -> list[dict]:
    words = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"http://127.0.0.1:{prometheus_port}/api/v1/query?{words}", timeout=60) as reply:
        return json.load(reply)["data"]["result"]


def is_silent(port: int) -> bool:
    """Whether no alert has fired since the start, all rules were evaluated without failure, and at least one evaluation
    of the recording rule run:foreshock_step:max found a run. `port`: Prometheus's. [1d]: all time since the start."""
    steps_seen = query(port, "count_over_time(run:foreshock_step:max[1d])")
    evaluations = int(sum(float(each["value"][1]) for each in steps_seen))
    failure_count = query(port, "sum(prometheus_rule_evaluation_failures_total)")
    failures = failure_count[0]["value"][1] if failure_count else "unknown"
    pending = {each["metric"]["alertname"] for each in query(port, "last_over_time(ALERTS[1d])")}
    fired = query(port, 'count_over_time(ALERTS{alertstate="firing"}[1d])')
    for each in fired:
        labels = {name: text for name, text in each["metric"].items() if name not in ("__name__", "alertstate")}
        say(f"fired: {labels.pop('alertname')} {labels}, in {each['value'][1]} evaluations")
    alerts = f"{len(fired)} fired, pending at some time: {', '.join(sorted(pending)) or 'none'}"
    say(f"{evaluations} evaluations over the run, {failures} failures; alerts: {alerts}")
    return evaluations > 0 and failures == "0" and not fired


def main() -> int:
    end_with_signals()
    words = sys.argv[1:]
    separator = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interval", type=int, default=5, help="seconds between two scrapes, and two evaluations")
    parser.add_argument("--seconds", type=int, default=300, help="how long the demo trains")
    parser.add_argument("--stay", action="store_true", help="keep the servers after the training, until Ctrl-C")
    parser.add_argument("--expect-silence", action="store_true", help="end with status 1 if any alert fired")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "stack", help="emptied first")
    options, command = parser.parse_args(words[:separator]), words[separator + 1 :]
    build = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release"))
    folder = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as servers:
        write_alertmanager_config(folder, servers.enter_context(receiver(folder)))
        with port_lock():
            alertmanager = port_from(9093)
            base = f"http://127.0.0.1:{alertmanager}"
            # An empty cluster address: Alertmanager then opens no port for other Alertmanagers.
            args = ["prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml", "--cluster.listen-address="]
            args += [f"--storage.path={folder}/alertmanager", f"--web.listen-address=127.0.0.1:{alertmanager}"]
            servers.enter_context(serving(args, folder, f"{base}/-/ready"))
            prometheus = port_from(9090)  # only after Alertmanager listens: else both could choose the same port
            write_prometheus_config(folder, options.interval, alertmanager, prometheus)
            args = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/prometheus"]
            args += [f"--web.listen-address=127.0.0.1:{prometheus}"]
            servers.enter_context(serving(args, folder, f"http://127.0.0.1:{prometheus}/-/ready"))
        show_addresses(prometheus, alertmanager, options.interval)
        status = train(command or [*DEMO, "--seconds", str(options.seconds)], folder, build / "bin" / "foreshock")
        if options.expect_silence and not is_silent(prometheus):
            status = status or 1  # a failed training keeps its own status
        if options.stay:
            say("the training has ended; Ctrl-C ends Prometheus and Alertmanager")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    return status


if __name__ == "__main__":
    sys.exit(main())
