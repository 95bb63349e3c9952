"""Many ranks: torchrun and its restarts, spawned ranks, runs under srun, and a rank that dies."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import live
import pytest
from monitored import EVERYTHING, FORESHOCK, PYTHON, assert_conserved, clean_environment
from scraping import free_port, get, wait_until

JOB = str(Path(__file__).with_name("job_training.py"))
# --standalone: torchrun takes a port that is free when it takes it.
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


def samples(metrics: str, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """{its labels but run, sorted: value} of the series of one metric."""
    found = {}
    for labels, value in re.findall(rf"^foreshock_{name}{{(.*)}} (\S+)$", metrics, re.MULTILINE):
        pairs = re.findall(r'(\w+)="([^"]*)"', labels)
        found[tuple(sorted(pair for pair in pairs if pair[0] != "run"))] = float(value)
    return found


def by_rank(metrics: str, name: str) -> dict[str, float]:
    return {dict(labels)["rank"]: value for labels, value in samples(metrics, name).items()}


@pytest.fixture
def start(base, tmp_path):
    """start(*command, **environment): under `foreshock run` with the run id "job"."""
    started = []

    def call(*command: str, **environment: str) -> subprocess.Popen:
        line = [str(FORESHOCK), "run", "--run-id", "job", "--port", "0", *EVERYTHING]
        line += ["--summary", str(tmp_path / "summary.json"), "--", *command]
        more = {"FORESHOCK_DIR": str(base), "PYTHONPATH": str(Path(live.__file__).parent)}
        more |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "STOP": str(tmp_path / "stop")}
        process = subprocess.Popen(
            line, env=clean_environment(**more) | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield call
    for process in started:
        process.terminate()
        process.wait(timeout=60)


def address(base: Path, run: str = "job") -> str:
    return f"http://127.0.0.1:{json.loads((base / run / 'agent.json').read_text())['port']}/metrics"


def test_torchrun_with_a_restart(base, tmp_path, start):
    """Rank 1 crashes once; torchrun starts both again, and the second attempt is the one that is shown."""
    process = start(*TORCHRUN, "--max-restarts", "1", JOB, "0", "crash", "1", "5")

    def second_attempt() -> str:
        metrics = get(address(base))
        attempts = {dict(labels)["attempt"] for labels in samples(metrics, "rank_info")}
        layers = samples(metrics, "layer_attention_fused_ratio")
        steps = by_rank(metrics, "steps_total")
        return metrics if attempts == {"1"} and layers and len(steps) == 2 and min(steps.values()) > 4 else ""

    metrics = wait_until(second_attempt, seconds=300, of=process)  # torch is imported five times
    info = {dict(labels)["rank"]: dict(labels) for labels in samples(metrics, "rank_info")}
    for rank in ("0", "1"):
        told = {name: info[rank][name] for name in ("local_rank", "attempt", "dp", "tp", "pp", "ep", "owner")}
        dp = {"dp": rank, "owner": "1" if rank == "0" else "0"}
        assert told == {"local_rank": rank, "attempt": "1", "tp": "0", "pp": "0", "ep": "0"} | dp
        assert info[rank]["framework"].startswith("torch_")
    assert by_rank(metrics, "rank_up") == {"0": 1, "1": 1}
    assert by_rank(metrics, "world_size") == {"0": 2, "1": 2}
    layers = samples(metrics, "layer_attention_fused_ratio")
    assert {dict(labels)["rank"] for labels in layers} == {"0"}, "replicas show no layers"
    assert {dict(labels)["layer"] for labels in layers} == {"000", "001"}
    assert samples(metrics, "run_state")[(("state", "running"),)] == 1

    (tmp_path / "stop").touch()
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    told = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert sorted((each["rank"], each["attempt"]) for each in told) == [(0, 1), (1, 1)]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["state"] == "finished"
    ranks = {(each["rank"], each["attempt"]): each for each in summary["ranks"]}
    assert sorted(ranks) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for (rank, attempt), each in ranks.items():
        assert each["state"] == ("finished" if attempt else "failed")
        if attempt or rank:  # rank 0 of the first attempt was killed by torchrun, perhaps within a call
            assert_conserved(each)
    assert ranks[(1, 0)]["steps"] == 5
    assert {each["steps"] for each in told} == {ranks[(0, 1)]["steps"], ranks[(1, 1)]["steps"]}
    assert "2 ranks in 4 processes (2 attempts)" in errors
    assert "ended early" not in errors


@pytest.mark.long
def test_spawned_ranks_and_one_that_dies(tmp_path, start):
    """Nothing tells a spawned rank its number but what it says to torch.distributed itself."""
    process = start(PYTHON, JOB, "12", "spawn", "2", "die", "1", "5")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    summary = json.loads((tmp_path / "summary.json").read_text())
    steps = {each["rank"]: each["steps"] for each in summary["ranks"]}
    assert steps == {0: 12, 1: 5}, errors
    for each in summary["ranks"]:
        assert_conserved(each)
    assert "monitoring was off" not in errors
    assert "job finished, 2 ranks, 12 steps" in errors
    assert "rank 1 at step 5" in errors


def test_srun_and_a_rank_that_is_killed(base, hand_library, tmp_path):
    """One `foreshock run` per task; who is who comes from Slurm's variables, and so does the run's id."""

    def task(rank: int) -> live.Live:
        command = [str(FORESHOCK), "run", "--preload", "--port", "0", *EVERYTHING]
        command += ["--summary", str(tmp_path / f"{rank}.json")]
        slurm = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        slurm |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NTASKS": "8"}
        given = clean_environment(FORESHOCK_DIR=str(base), HAND_LIBRARY=str(hand_library))
        return live.Live([*command, "--", PYTHON, live.__file__], given | slurm)

    tasks = [task(rank) for rank in range(2)]
    for each in tasks:
        each.do("hand.step(5)")
    url = address(base, "77.0")
    metrics = wait_until(lambda: len(by_rank(text := get(url), "rank_up")) == 2 and text)
    assert by_rank(metrics, "world_size") == {"0": 2, "1": 2}
    assert {dict(labels)["local_rank"] for labels in samples(metrics, "rank_info")} == {"0", "1"}

    os.kill(tasks[1].pid, signal.SIGKILL)
    assert tasks[1].finish() == -signal.SIGKILL
    killed = json.loads((tmp_path / "1.json").read_text())
    assert (killed["state"], [each["rank"] for each in killed["ranks"]]) == ("failed", [1])
    tasks[0].do("hand.step(5)")
    metrics = wait_until(lambda: by_rank(text := get(url), "rank_up") == {"0": 1, "1": 0} and text)
    assert samples(metrics, "run_state")[(("state", "running"),)] == 1, "the other one goes on"

    assert tasks[0].finish() == 0
    done = json.loads((tmp_path / "0.json").read_text())
    assert (done["state"], [(each["rank"], each["steps"]) for each in done["ranks"]]) == ("finished", [(0, 10)])
    assert_conserved(done["ranks"][0])
    assert [entry.name for entry in base.iterdir()] == ["lock"]
