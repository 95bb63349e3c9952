"""Measures what a Prometheus server needs to scrape a fleet of agents and to evaluate the alert rules on them.

    python bench/fleet.py [--agents 200] [--seconds 90] [--interval 15] [--layers owner|budget] [--json OUT]

Two real Prometheus servers with empty stores scrape the series of 200 agents. bench/fleet/agents.cpp simulates the
agents with the real exporter and server. Each agent has 8 ranks. It exports the series by layer of one rank (--layers
owner), or those of all eight up to the number of series that an agent may have (--layers budget). Only one of the two
Prometheus servers evaluates the alert rules, so the difference of their CPU times is the cost of the rules, even on a
busy machine. All processes share the cores.

The program prints sizes and times of scrapes and queries, memory and CPU of Prometheus, and the cost of the rules: CPU
seconds per evaluation interval, and the evaluation times that Prometheus reports for groups and for the most expensive
rules. The evaluation times are wall times. Each is the shortest of the last third of all evaluations: a busy machine
makes evaluations longer, and the first ones are too short, since their ranges have little data. Every alert fires here,
which is the most expensive case. A rule with a range reaches its full cost only after the length of its range, ten
minutes for most.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")).resolve()
PORT, PLAIN_PORT = 19847, 19848  # of the server with rules, and of the one without; arbitrary
RULES = ROOT / "dashboards" / "rules" / "foreshock.yml"


def result_of(expression: str) -> list[dict]:
    """The series that a PromQL expression gives on the server with rules."""
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/api/v1/query?{query}", timeout=60) as reply:
        return json.load(reply)["data"]["result"]


def value(expression: str) -> float:
    """The value of the first series of the result; NaN if the result is empty."""
    found = result_of(expression)
    return float(found[0]["value"][1]) if found else float("nan")


def process_numbers(pid: int) -> tuple[float, float]:
    """(resident MB, CPU seconds) of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    # Field 0 is the state, which follows the name. 21: rss in pages; 11 and 12: utime and stime in ticks.
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6, (int(fields[11]) + int(fields[12])) / ticks


def groups_of_rules() -> list[dict]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/api/v1/rules", timeout=60) as reply:
            return json.load(reply)["data"]["groups"]
    except OSError:  # Prometheus is still starting
        return []


def wait_for_rules(seconds: float) -> None:
    """Waits until each rule has been evaluated; exits if a rule has an error."""
    end = time.monotonic() + seconds
    while True:
        rules = [rule for group in groups_of_rules() for rule in group["rules"]]
        health = {rule["health"] for rule in rules}
        if health == {"ok"}:
            return
        if "err" in health or time.monotonic() > end:
            raise SystemExit(f"fleet: {[rule['name'] for rule in rules if rule['health'] != 'ok']}")
        time.sleep(1)


def evaluations() -> float:
    """Evaluations so far of the group of rules that has most of them: iterations minus those that Prometheus missed."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=60) as reply:
        lines = [line.rpartition(" ") for line in reply.read().decode().splitlines()]
    evaluated: dict[str, float] = {}  # by group
    for kind, sign in (("", 1), ("missed_", -1)):
        for name, _, count in lines:
            if name.startswith(f"prometheus_rule_group_iterations_{kind}total{{"):
                group = name.partition("{")[2]
                evaluated[group] = evaluated.get(group, 0) + sign * float(count)
    return max(evaluated.values())


class EvaluationTimes:
    """Evaluation times of the rules in seconds. A rule's time is the shortest of the last third of all readings."""

    def __init__(self) -> None:
        # By (group, "number name" of the rule). The number is needed because rules of a group may share a name.
        self.readings: list[dict[tuple[str, str], float]] = []

    def read(self) -> None:
        times = {
            (group["name"], f"{number:2} {rule['name']}"): rule["evaluationTime"]
            for group in groups_of_rules()
            for number, rule in enumerate(group["rules"])
        }
        if times:
            self.readings.append(times)

    def shortest(self) -> dict[tuple[str, str], float]:
        last = self.readings[-math.ceil(len(self.readings) / 3) :]
        return {key: min(times[key] for times in last) for key in last[-1]} if last else {}

    def by_group(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        for (group, _), seconds in self.shortest().items():
            sums[group] = sums.get(group, 0) + seconds
        return sums

    def most_expensive(self, count: int) -> list[tuple[str, float]]:
        """(name, seconds) of the `count` rules with the longest times."""
        rules = [(rule[3:], seconds) for (_, rule), seconds in self.shortest().items()]  # [3:]: without the number
        return sorted(rules, key=lambda rule: -rule[1])[:count]


def start_prometheus(
    agent_ports: list[int], folder: pathlib.Path, interval: int, port: int, rules: str
) -> subprocess.Popen:
    """Starts a server on `port` that scrapes the agents and itself. `rules`: the name of a file in quotes, or ""."""
    folder.mkdir()
    targets = [{"targets": [f"127.0.0.1:{agent_port}" for agent_port in agent_ports]}]
    (folder / "targets.json").write_text(json.dumps(targets))
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {interval}s, scrape_timeout: {min(interval, 10)}s,"
        f" evaluation_interval: {interval}s}}\n"
        f"rule_files: [{rules}]\n"
        "scrape_configs:\n- job_name: foreshock\n"
        f"  file_sd_configs: [{{files: ['{folder}/targets.json']}}]\n"
        f"- job_name: self\n  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
    )
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        return subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)


def measure(server: subprocess.Popen, plain: subprocess.Popen, seconds: int, interval: int) -> dict:
    """Prints and returns the figures. `server` evaluates the rules, `plain` does not."""
    time.sleep(3 * interval)  # every target is scraped, so that all series exist
    wait_for_rules(seconds=120)
    evaluations_before = evaluations()
    begin, cpu_before = time.monotonic(), [process_numbers(process.pid)[1] for process in (server, plain)]
    times = EvaluationTimes()
    while time.monotonic() - begin < seconds:
        time.sleep(interval)
        times.read()
    took = time.monotonic() - begin
    (resident, cpu), (_, plain_cpu) = (process_numbers(process.pid) for process in (server, plain))
    cores, plain_cores = (cpu - cpu_before[0]) / took, (plain_cpu - cpu_before[1]) / took  # CPU seconds per second
    evaluated = evaluations() - evaluations_before
    rules_seconds = (cores - plain_cores) * took / evaluated  # CPU time per evaluation of all rules
    up, series = value("sum(up{job='foreshock'})"), value("prometheus_tsdb_head_series")
    rate = value("sum(scrape_samples_scraped{job='foreshock'})") / interval
    scrape_ms = [value(f"{how}(scrape_duration_seconds{{job='foreshock'}})") * 1e3 for how in ("avg", "max")]
    print(f"agents up          {up:.0f}")
    print(f"series             {series:.0f}, {series / up:.0f} of an agent")
    print(f"samples            {rate:.0f} per second, scraped every {interval} s")
    print(f"a scrape took      {scrape_ms[0]:.1f} ms on average, {scrape_ms[1]:.1f} ms at most")
    print(
        f"Prometheus         {resident:.0f} MB resident ({resident * 1e3 / series:.1f} kB a series), {cores:.2f} cores"
    )
    print(f"all rules          {rules_seconds:.2f} CPU seconds in each of {evaluated:.0f} intervals")
    for name, duration in sorted(times.by_group().items(), key=lambda group: -group[1]):
        print(f"group              {name}: {duration * 1e3:.0f} ms")
    for name, duration in times.most_expensive(5):
        print(f"rule               {name}: {duration * 1e3:.0f} ms")
    for name, query in (
        ("worst ratio", 'topk(5, foreshock_attention_fused_ratio{stat="max"})'),
        ("ranks up", "sum by (run) (foreshock_rank_up)"),
        ("layers of a run", "max by (run, layer) (foreshock_layer_attention_fused_ratio)"),
    ):
        begin = time.monotonic()
        rows = len(result_of(query))
        print(f"query              {name}: {(time.monotonic() - begin) * 1e3:.0f} ms, {rows} rows")
    return {
        "agents": up, "series": series, "samples_per_second": rate, "interval_seconds": interval,
        "resident_megabytes": resident, "cores": cores, "rules_seconds": rules_seconds, "seconds": seconds,
        "groups_seconds": times.by_group(),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=90)
    parser.add_argument("--interval", type=int, default=15, help="seconds between two scrapes, and two evaluations")
    parser.add_argument("--rules", type=pathlib.Path, default=RULES, help="another file, to compare")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there too")
    parser.add_argument("--layers", choices=("owner", "budget"), default="owner")
    options = parser.parse_args()
    if shutil.which("prometheus") is None:
        print("fleet: prometheus is not installed; install the package prometheus")
        return 1
    program = [str(BUILD / "bin" / "fleet_agents"), str(options.agents), options.layers]
    fleet = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    agent_ports = [int(fleet.stdout.readline()) for _ in range(options.agents)]  # each agent prints its port
    folder = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-fleet-"))
    servers = [
        start_prometheus(agent_ports, folder / "with-rules", options.interval, PORT, f"'{options.rules.resolve()}'"),
        start_prometheus(agent_ports, folder / "without", options.interval, PLAIN_PORT, ""),
    ]
    try:
        figures = measure(*servers, options.seconds, options.interval)
        if options.json:
            options.json.write_text(json.dumps(figures) + "\n")
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(timeout=60)
        fleet.stdin.close()  # ends the agents
        fleet.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
