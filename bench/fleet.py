"""What a fleet of agents costs the Prometheus that scrapes it.

    python bench/fleet.py [--agents 200] [--seconds 90] [--interval 15] [--layers owner|budget] [--json OUT]

200 agents' worth of series (bench/fleet/agents.cpp: the agent's own exporter and server, 8 ranks each; the layers of
one rank, or of all eight up to the agent's budget) are scraped by a real Prometheus with an empty store, which
evaluates our rules over them. Both share this machine's cores. Printed: series, samples per second, how long a scrape
took, memory and CPU of Prometheus, how long one evaluation of all rules took, and what an overview of the whole fleet
costs as a query. A range in a rule costs its full price once there is so much data: ten minutes for most.
"""

from __future__ import annotations

import argparse
import json
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
PORT = 19847
RULES = ROOT / "dashboards" / "rules" / "foreshock.yml"


def ask(expression: str) -> list[dict]:
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/api/v1/query?{query}", timeout=60) as reply:
        return json.load(reply)["data"]["result"]


def value(expression: str) -> float:
    found = ask(expression)
    return float(found[0]["value"][1]) if found else float("nan")


def process_numbers(pid: int) -> tuple[float, float]:
    """(resident MB, CPU seconds) of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6, (int(fields[11]) + int(fields[12])) / ticks


def rule_seconds() -> dict[str, float]:
    """How long the last evaluation of each group of rules took."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/api/v1/rules", timeout=60) as reply:
        groups = json.load(reply)["data"]["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        if rule["health"] != "ok":
            raise RuntimeError(f"{rule['name']}: {rule.get('lastError', rule['health'])}")
    return {group["name"]: group["evaluationTime"] for group in groups}


def start_prometheus(ports: list[int], folder: pathlib.Path, interval: int) -> subprocess.Popen:
    targets = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
    (folder / "targets.json").write_text(json.dumps(targets))
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {interval}s, scrape_timeout: {min(interval, 10)}s,"
        f" evaluation_interval: {interval}s}}\n"
        f"rule_files: ['{RULES}']\n"
        "scrape_configs:\n- job_name: foreshock\n"
        f"  file_sd_configs: [{{files: ['{folder}/targets.json']}}]\n"
        f"- job_name: self\n  static_configs: [{{targets: ['127.0.0.1:{PORT}']}}]\n"
    )
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        return subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{PORT}"], stdout=log, stderr=log)


def measure(server: subprocess.Popen, agents: int, seconds: int, interval: int) -> dict[str, float]:
    time.sleep(3 * interval)  # every target once, and its series made
    cpu, begin = process_numbers(server.pid)[1], time.monotonic()
    time.sleep(seconds)
    resident, cpu_now = process_numbers(server.pid)
    cores = (cpu_now - cpu) / (time.monotonic() - begin)
    up, series = value("sum(up{job='foreshock'})"), value("prometheus_tsdb_head_series")
    rate = value("sum(scrape_samples_scraped{job='foreshock'})") / interval
    took = [value(f"{how} scrape_duration_seconds{{job='foreshock'}})") * 1e3 for how in ("avg(", "max(")]
    print(f"agents up          {up:.0f} of {agents}")
    print(f"series             {series:.0f}, {series / agents:.0f} of an agent")
    print(f"samples            {rate:.0f} per second, scraped every {interval} s")
    print(f"a scrape took      {took[0]:.1f} ms on average, {took[1]:.1f} ms at most")
    print(
        f"Prometheus         {resident:.0f} MB resident ({resident * 1e3 / series:.1f} kB a series), {cores:.2f} cores"
    )
    rules = rule_seconds()
    slowest = max(rules, key=rules.get)
    print(f"all rules          {sum(rules.values()):.2f} s, of it {rules[slowest]:.2f} s {slowest}")
    for name, query in (
        ("worst ratio", 'topk(5, foreshock_attention_deviation_ratio{stat="max"})'),
        ("ranks up", "sum by (run) (foreshock_rank_up)"),
        ("layers of a run", "max by (run, layer) (foreshock_layer_attention_deviation_ratio)"),
    ):
        begin = time.monotonic()
        rows = len(ask(query))
        print(f"query              {name}: {(time.monotonic() - begin) * 1e3:.0f} ms, {rows} rows")
    return {
        "agents": up, "series": series, "samples_per_second": rate, "interval_seconds": interval,
        "resident_megabytes": resident, "cores": cores, "rules_seconds": sum(rules.values()), "seconds": seconds,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=90)
    parser.add_argument("--interval", type=int, default=15, help="seconds between two scrapes, and two evaluations")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there too")
    parser.add_argument("--layers", choices=("owner", "budget"), default="owner")
    options = parser.parse_args()
    if shutil.which("prometheus") is None:
        print("fleet: prometheus is not installed; install the package prometheus")
        return 1
    program = [str(BUILD / "bin" / "fleet_agents"), str(options.agents), options.layers]
    fleet = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ports = [int(fleet.stdout.readline()) for _ in range(options.agents)]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-fleet-"))
    server = start_prometheus(ports, folder, options.interval)
    try:
        figures = measure(server, options.agents, options.seconds, options.interval)
        if options.json:
            options.json.write_text(json.dumps(figures) + "\n")
    finally:
        server.terminate()
        server.wait(timeout=60)
        fleet.stdin.close()
        fleet.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
