"""One agent per node and run id: runs that share it, runs that do not, and two that claim the same rank."""

import json
import re
import socket
import subprocess
from pathlib import Path

import live
import pytest
from monitored import EVERYTHING, FORESHOCK, PYTHON, assert_conserved, clean_environment
from records import record_lines
from scraping import free_port, get, wait_until

RANK_TRAINING = str(Path(__file__).with_name("rank_training.py"))
STEPS, LAYERS = 12, 2


@pytest.mark.long
def test_four_runs_of_one_id_share_one_agent_and_lose_nothing(base, tmp_path):
    def start(rank: int) -> subprocess.Popen:
        outputs = ["--summary", str(tmp_path / f"{rank}.json"), "--record", str(tmp_path / "record.jsonl")]
        return subprocess.Popen(
            [str(FORESHOCK), "run", "--run-id", "job", "--port", "0", *EVERYTHING, *outputs]
            + ["--", PYTHON, RANK_TRAINING, str(STEPS), str(tmp_path), "4"],
            env=clean_environment(
                FORESHOCK_DIR=str(base), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="4", LOCAL_WORLD_SIZE="4",
                PYTHONPATH=str(Path(live.__file__).parent),
            ),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    runs = [start(rank) for rank in range(4)]
    ended = [run.communicate(timeout=240) for run in runs]
    assert [run.returncode for run in runs] == [0] * 4, ended
    told = [json.loads(out) for out, _ in ended]
    assert len({each["agent"]["pid"] for each in told}) == 1
    pages = [re.findall(r"page at (\S+)", errors) for _, errors in ended]
    assert pages == [[f"http://127.0.0.1:{told[0]['agent']['port']}/"]] * 4

    calls, judged = STEPS * LAYERS, {}
    for rank, (_, errors) in enumerate(ended):
        summary = json.loads((tmp_path / f"{rank}.json").read_text())
        assert summary["state"] == "finished"
        assert [each["rank"] for each in summary["ranks"]] == [rank], "of its own rank only"
        assert errors.count(f"foreshock  job finished, {STEPS} steps") == 1
        (own,) = summary["ranks"]
        assert_conserved(own)
        assert own["steps"] == STEPS
        assert own["steps_lost"] == 0
        for of in own["attention"].values():
            assert of["calls"] == calls
            assert of["sampled"] == of["judged"] > 0
            assert sum(of["lost"].values()) == 0
        judged[rank] = sum(of["judged"] for of in own["attention"].values())

    lines = record_lines(tmp_path / "record.jsonl")
    slices = [line for line in lines if line["type"] == "sample" and line["tensor"] in ("out", "grad_query")]
    samples = [(line["rank"], line["ticket"]) for line in slices]
    assert len(samples) == len(set(samples))
    assert {rank: sum(each == rank for each, _ in samples) for rank in range(4)} == judged
    assert [entry.name for entry in base.iterdir()] == ["lock"]


def test_two_run_ids_have_agents_and_ports_of_their_own(base, start_hand):
    wanted = free_port()
    trainers = {name: start_hand(name, port=f"{wanted}-{wanted + 50}") for name in ("first", "second")}
    agents = {}
    for name, trainer in trainers.items():
        trainer.do("hand.step(5)")
        agents[name] = json.loads((base / name / "agent.json").read_text())
    assert agents["first"]["port"] == wanted
    assert agents["second"]["port"] > wanted, "the next one that is free"
    assert agents["first"]["pid"] != agents["second"]["pid"]
    for name, agent in agents.items():
        address = f"http://127.0.0.1:{agent['port']}/metrics"
        series = wait_until(lambda address=address: re.findall(r'foreshock_steps_total{.*run="(\w+)"', get(address)))
        assert set(series) == {name}
    for name, trainer in trainers.items():
        assert trainer.finish() == 0
        assert f"page at http://127.0.0.1:{agents[name]['port']}/" in trainer.stderr()
        summary = json.loads(trainer.summary.read_text())
        assert summary["run"] == name
        assert [rank["steps"] for rank in summary["ranks"]] == [5]


def test_a_run_without_record_keeps_one_in_its_folder(base, hand_library, tmp_path):
    def train(*options: str, **environment: str) -> str:
        command = ["env", "-C", str(tmp_path), str(FORESHOCK), "run", "--preload", "--port", "0", *EVERYTHING, *options]
        given = clean_environment(FORESHOCK_DIR=str(base), HAND_LIBRARY=str(hand_library), FORESHOCK_RECORD="")
        with live.Live([*command, "--", PYTHON, live.__file__], given | environment) as trainer:
            trainer.do("hand.step(5)")
            assert trainer.finish() == 0
        return trainer.stderr()

    train("--record", "off")
    assert list(tmp_path.glob("*.jsonl")) == []
    said = train()
    (record,) = tmp_path.glob("*.jsonl")
    assert re.fullmatch(r"foreshock-[0-9a-f]{8}\.jsonl", record.name)
    assert record.stat().st_mode & 0o777 == 0o600
    assert f"foreshock report {record}" in " ".join(said.split())
    record.unlink()
    for _ in range(2):  # the second run of an id goes on with its record
        train(SLURM_JOB_ID="41")
    (record,) = tmp_path.glob("*.jsonl")
    assert record.name == f"foreshock-41-{socket.gethostname()}.jsonl"
    verdicts = [line for line in record_lines(record) if line["type"] == "verdict"]
    assert [line["run"] for line in verdicts] == ["41", "41"]


def test_a_run_around_a_run_does_not_say_that_nothing_trained(base, tmp_path):
    inner = [str(FORESHOCK), "run", *EVERYTHING, "--", PYTHON, RANK_TRAINING, str(STEPS), str(tmp_path), "1"]
    outer = [str(FORESHOCK), "run", "--run-id", "job", "--port", "0", "--summary", str(tmp_path / "outer.json")]
    ended = subprocess.run(
        [*outer, "--", *inner],
        env=clean_environment(FORESHOCK_DIR=str(base), RANK="0", PYTHONPATH=str(Path(live.__file__).parent)),
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count(f"foreshock  job finished, {STEPS} steps") == 1, "told once"
    assert "made no optimizer step" not in ended.stderr
    assert "started by another `foreshock run`" in ended.stderr
    summary = json.loads((tmp_path / "outer.json").read_text())
    assert (summary["ranks"], summary["other_ranks"]) == ([], 1)
    assert [entry.name for entry in base.iterdir()] == ["lock"]


def test_a_second_run_of_a_living_rank_is_refused_aloud(base, start_hand):
    alone = start_hand("alone")
    truth = alone.do("hand.step(3)")
    first = start_hand("twice", RANK="1")
    first.do("hand.step(10)")
    second = start_hand("twice", RANK="1")
    assert second.do("hand.step(3)") == truth, "it trains as if nobody watched"
    second.process.stdin.write(json.dumps("sys.exit(3)") + "\n")
    assert second.finish() == 3
    assert "monitoring was off in 1 process (rank_taken)" in second.stderr()
    assert len([entry for entry in (base / "twice").iterdir() if entry.suffix == ".seg"]) == 1
    first.do("hand.step(10)")
    calls = first.do("hand.calls")
    assert first.finish() == 0
    assert "monitoring was off" not in first.stderr(), "the first run's own training was watched to its end"
    (rank,) = json.loads(first.summary.read_text())["ranks"]
    assert_conserved(rank)
    assert (rank["rank"], rank["steps"]) == (1, 20)
    assert {name: of["calls"] for name, of in rank["attention"].items()} == calls
