"""The endpoint of a live agent while two trainings keep the cores busy: scraped, checked, and crowded."""

import contextlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from monitored import FORESHOCK, PYTHON, clean_environment
from scraping import (
    ended,
    get,
    half_open_clients,
    needs,
    prometheus,
    promtool_complaints,
    scrape_milliseconds,
    wait_until,
)

HERE = Path(__file__).parent
RANKS = len(os.sched_getaffinity(0))  # one training per core


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """127.0.0.1:port of the agent of a job with a training on every core, all of them past their first samples."""
    folder = tmp_path_factory.mktemp("job")
    base = Path("/dev/shm") / f"foreshock-live-{os.getpid()}"
    base.mkdir(mode=0o700)
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, ["rm", "-r", str(base)])
        for rank in range(RANKS):
            environment = clean_environment(
                FORESHOCK_DIR=str(base), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS),
                LOCAL_WORLD_SIZE=str(RANKS), PYTHONPATH=str(HERE.parent / "support"),
            )  # fmt: skip
            command = [
                str(FORESHOCK),
                "run",
                "--run-id",
                "job",
                "--port",
                "0",
                "--every",
                "8",
                "--max-slowdown",
                "100%",
            ]
            command += ["--", PYTHON, str(HERE / "rank_training.py"), "0", str(folder), str(RANKS)]
            stack.enter_context(
                ended(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            )
        agent = wait_until(lambda: json.loads((base / "job" / "agent.json").read_text()))
        address = f"127.0.0.1:{agent['port']}"

        def judged() -> set[str]:
            lines = re.findall(r"foreshock_attention_judged_total{(.*?)} [1-9]", get(f"http://{address}/metrics"))
            return {label for line in lines for label in re.findall(r'rank="(\d+)"', line)}

        wait_until(lambda: len(judged()) == RANKS)
        yield address


def steps(address: str) -> dict[int, int]:
    state = json.loads(get(f"http://{address}/api/v1/state"))
    return {rank["rank"]: rank["steps"] for rank in state["ranks"]}


@needs["promtool"]
def test_promtool_finds_nothing_to_complain_of(address):
    wanted = {"foreshock_loss", "foreshock_gradient_norm", "foreshock_attention_fused_ratio"}

    def whole() -> str:
        metrics = get(f"http://{address}/metrics")
        return metrics if wanted <= set(re.findall(r"^# TYPE (\w+)", metrics, re.MULTILINE)) else ""

    assert promtool_complaints(wait_until(whole)) == ""
    assert get(f"http://{address}/healthz").strip() == "ok"


@pytest.mark.long
@needs["prometheus"]
def test_prometheus_keeps_the_live_target_up(address, tmp_path):
    """Half of the time that a Prometheus waits by default; how long a scrape takes is asked of the next test."""
    with prometheus(address, tmp_path, interval="5s", timeout="5s") as server:
        server.wait_for_scrapes(4)
        taken = server.query("max_over_time(scrape_duration_seconds[1m])")
        assert server.query("min_over_time(up[1m])")[0]["value"][1] == "1", f"not every scrape was taken: {taken}"
        loss = {row["metric"]["rank"]: float(row["value"][1]) for row in server.query("foreshock_loss")}
        assert set(loss) == {str(rank) for rank in range(RANKS)}
        assert all(0 < value < 10 for value in loss.values())
        grown = server.query("increase(foreshock_attention_judged_total[1m])")
        assert len(grown) == 2 * RANKS
        assert all(float(row["value"][1]) > 0 for row in grown)


@pytest.mark.long
def test_half_open_clients_do_not_delay_a_scrape_while_the_cores_train(address, show_line):
    before = steps(address)
    alone = scrape_milliseconds(address, count=40, pause=0.05)
    with half_open_clients(address):
        times = scrape_milliseconds(address, count=40, pause=0.05)
    after = steps(address)
    figures = f"median {times[20]:.1f} ms, worst {times[-1]:.1f} ms (without them {alone[20]:.1f}, {alone[-1]:.1f})"
    show_line("scrapes", f"{RANKS} trainings, 100 half-open clients: {figures}")
    assert all(after[rank] > before[rank] for rank in range(RANKS)), "they did train meanwhile"
    # Two of forty may meet another program's burst; a machine that has no time for a scrape has none without them.
    assert times[-3] < max(100, 2 * alone[-3]), (times, alone)
