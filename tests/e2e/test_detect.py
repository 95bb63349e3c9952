"""The detectors live and on the record of the same run: one and the same events, whatever becomes of the agent."""

import json
import math
import os
import pathlib
import resource
import signal
import subprocess

import pytest
from hand_training import BIASED, KEYS, Training
from monitored import FORESHOCK
from records import record_lines
from scraping import get, wait_until
from tiers import keep


def detected(foreshock, record: pathlib.Path) -> list[tuple]:
    done = foreshock("detect", "--json", str(record))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return [tuple(event[key] for key in KEYS) for event in json.loads(done.stdout)["events"]]


def names(events: list[tuple], level: str = "warn") -> list[str]:
    """What happened, of the precursors those of one level only."""
    return [event[5] or event[2] for event in events if event[6] in (None, level)]


@pytest.mark.parametrize("agents", keep(["one agent", "SIGTERM", "SIGKILL"], "SIGKILL"))
def test_live_and_record_give_the_same_events(base, start_hand, foreshock, agents):
    """A bias, then gradients that jump, then a spike; agents that end in between learn nothing twice."""
    training = Training(base, start_hand("me"))

    def next_agent(settle: bool = True) -> None:
        if agents == "SIGKILL" and settle:
            training.settle()
        if agents != "one agent":
            training.change_agent(signal.Signals[agents])

    training.run(200)
    next_agent()
    training.run(80)
    assert training.recorded() == []
    next_agent(settle=False)
    training.plant(BIASED)
    training.run(20)
    next_agent()
    training.run(20, gradient=20)
    next_agent()
    training.run(10, loss=9)
    wait_until(lambda: "loss_spike" in names(training.recorded()))

    address = json.loads((training.directory / "agent.json").read_text())
    # Lines are in the record at once; what is scraped is made once a second.
    level = 'foreshock_precursor_level{run="me",rank="0",detector="bias"} 2'
    metrics = wait_until(lambda: level in (text := get(f"http://127.0.0.1:{address['port']}/metrics")) and text)
    assert 'foreshock_precursor_level{run="me",rank="0",detector="entropy_drop"} 0' in metrics
    assert training.trainer.finish() == 0

    recorded = training.recorded()
    assert recorded == detected(foreshock, training.trainer.record)
    warned = {(event[5], event[3]): event[1] for event in recorded if event[6] == "warn"}
    # Layers of a trainer that names none are told by their ordinal. A jump counts for about 3 spreads a slice, 2.5
    # beyond the slack: 18 after eight slices; and it had learned long before.
    for layer in ("call000", "call001"):
        assert 280 < warned["bias", layer] <= 295
    assert 300 < warned["gradient_norm", None] <= 305
    assert [event[1] for event in recorded if event[2] == "loss_spike"] == [321]

    (rank,) = json.loads(training.trainer.summary.read_text())["ranks"]
    (event,) = rank["precursors"]["loss_events"]
    assert (event["event"], event["step"]) == ("loss_spike", 321)
    before = {(each["detector"], each["layer"]): each["warn_step"] for each in event["preceded_by"]}
    assert before.items() >= {("bias", layer): warned["bias", layer] for layer in ("call000", "call001")}.items()
    assert before["gradient_norm", None] == warned["gradient_norm", None]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"loss": math.nan}, ["divergence"]),
        ({"gradient": math.inf}, ["nonfinite_gradient_norm"]),
        ({}, []),
    ],
)
def test_each_fault_gives_its_event_and_no_other(base, start_hand, foreshock, how, told):
    training = Training(base, start_hand("me"))
    training.run(150)
    training.run(20, **how)
    assert training.trainer.finish() == 0
    recorded = training.recorded()
    assert [event[2] for event in recorded] == told
    assert [event[1] for event in recorded] == [151] * len(told)
    assert recorded == detected(foreshock, training.trainer.record)


def test_a_command_is_told_what_happened_even_at_the_end(base, start_hand, tmp_path):
    """The run is over before the command has ended: the agent stays for it, the trainer does not."""
    told = tmp_path / "told"
    command = f"sleep 1; env | grep ^FORESHOCK_ALERT_ > {told}.part; mv {told}.part {told}"
    training = Training(base, start_hand("me", "--on-alert", command))
    training.run(150)
    assert not told.exists()
    training.run(10, loss=math.nan)
    assert training.trainer.finish() == 0
    wait_until(told.exists)
    variables = dict(line.split("=", 1) for line in told.read_text().splitlines())
    of_alert = {name.removeprefix("FORESHOCK_ALERT_"): value for name, value in variables.items()}
    assert "me" in of_alert.pop("TEXT")
    assert of_alert.pop("URL").startswith("http://127.0.0.1:")
    assert of_alert.pop("ACTION").startswith("go back to a checkpoint")
    expected = {"RUN": "me", "RANK": "0", "STEP": "151", "EVENT": "loss_nonfinite", "VALUE": "", "LEFT_OUT": "0"}
    assert of_alert == expected | {"DETECTOR": "", "LAYER": "", "TENSOR": "", "SCORE": ""}
    assert [event[2] for event in training.recorded()] == ["divergence"]


def test_a_trainer_that_dies_and_is_resumed_at_a_lower_step(base, start_hand, foreshock):
    """What it loses since its checkpoint is no spike. The record tells the resume, and the run that ended."""
    training = Training(base, start_hand("me"))
    training.run(100, loss=1.0)
    training.run(50, loss=0.5, gradient=0.2)
    training.step = 40
    training.run(150)
    training.settle()
    recorded = training.recorded()
    os.kill(training.trainer.pid, signal.SIGKILL)
    assert training.trainer.finish() != 0
    assert training.recorded() == recorded == detected(foreshock, training.trainer.record)
    assert [(event[2], event[1], event[4]) for event in recorded] == [("resumed", 41, 150.0)]
    ended = training.lines()
    assert [line["state"] for line in ended if line["type"] == "run"] == ["started", "ended"]


def test_a_clock_that_jumps_changes_nothing(base, start_hand, foreshock, tmp_path):
    training = Training(base, start_hand("me"))
    training.run(150)
    training.plant(BIASED)
    training.run(20)
    assert training.trainer.finish() == 0
    lines = training.lines()
    for number, line in enumerate(lines):
        line["time"] = -1e9 if number % 7 == 3 else 1e18
        line.pop("duration_seconds", None)
    jumped = tmp_path / "jumped.jsonl"
    jumped.write_text("".join(json.dumps(line) + "\n" for line in lines))
    events = detected(foreshock, jumped)
    assert set(names(events)) == {"bias", "deviation_forward", "deviation_backward"}
    assert events == training.recorded()


def test_a_second_run_on_the_same_record_begins_anew(base, start_hand, foreshock):
    """The directory of the first one is gone, and with it what its detectors had learned: the record says so."""
    first = Training(base, start_hand("me"))
    first.run(150)
    assert first.trainer.finish() == 0
    second = Training(base, start_hand("me", "--record", str(first.trainer.record)))
    second.trainer.record = first.trainer.record
    second.step = 150
    second.plant(BIASED)
    second.run(60)
    assert second.trainer.finish() == 0
    lines = record_lines(first.trainer.record)
    assert [line["event"] for line in lines if line["type"] == "event"][0] == "detectors_begin_anew"
    recorded = second.recorded()
    assert set(names(recorded)) == {"bias", "deviation_forward", "deviation_backward"}
    assert recorded == detected(foreshock, first.trainer.record)


def test_wrong_use_and_a_file_that_is_no_record(foreshock, tmp_path):
    done = foreshock("detect")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    text = tmp_path / "text.jsonl"
    text.write_text("hello\n")
    done = foreshock("detect", str(text))
    assert (done.returncode, done.stderr) == (1, f"foreshock: {text}: no line of it is a record's (line 1: not JSON)\n")
    done = foreshock("detect", str(tmp_path / "none.jsonl"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def write_biased_record(record: pathlib.Path) -> None:
    """Of a layer whose name a terminal would take for a command."""
    facts = {"schema": 1, "run": "r", "rank": 0}
    lines = [facts | {"type": "step", "step": step, "loss": 2.0} for step in range(300)]
    for step in range(0, 300, 2):
        of = {"type": "sample", "step": step, "layer": "\x1b[31m", "pass": "forward", "bias_ulp": step // 200 * 9.0}
        lines.insert(0, facts | of | {"fused_ratio": 1.0 + step // 200 * 99})
    lines.sort(key=lambda line: (line["step"], line["type"]))
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_what_is_in_a_record_is_printed_and_not_obeyed(foreshock, tmp_path):
    write_biased_record(tmp_path / "record.jsonl")
    done = foreshock("detect", str(tmp_path / "record.jsonl"))
    assert ("?[31m" in done.stdout, "\x1b" in done.stdout) == (True, False), done.stdout


def test_scores_that_the_disk_does_not_take_leave_nothing(tmp_path):
    record, scores = tmp_path / "record.jsonl", tmp_path / "scores.csv"
    write_biased_record(record)
    done = subprocess.run(
        [FORESHOCK, "detect", "--scores", scores, record],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, f"foreshock: cannot write {scores}: File too large\n")
    assert [path.name for path in tmp_path.iterdir()] == ["record.jsonl"]


def test_series_without_room_are_told_of(foreshock, tmp_path):
    """The room of a detector of tensors is 8192 series."""
    line = {"schema": 1, "type": "sample", "run": "r", "rank": 0, "step": 1, "pass": "forward", "layer": "000"}
    tensor = {"schema": 1, "type": "tensor", "run": "r", "step": 1, "wasserstein_previous": 1.0}
    lines = [line, *(tensor | {"tensor": f"experts.{n}"} for n in range(8200))]
    record = tmp_path / "record.jsonl"
    record.write_text("".join(json.dumps(each) + "\n" for each in lines))
    detected = foreshock("detect", str(record))
    assert detected.stderr == "foreshock: weight_shift has no room for 8 of its series\n"
    assert foreshock("report", str(record), "-o", str(tmp_path / "page.html")).returncode == 0
    assert "Not watched: weight_shift has no room for 8 of its series." in (tmp_path / "page.html").read_text()


def test_scores_of_every_value(foreshock, tmp_path):
    record, scores = tmp_path / "record.jsonl", tmp_path / "scores.csv"
    step = {"schema": 1, "type": "step", "run": "a,b", "rank": 3}
    record.write_text("".join(json.dumps(step | {"step": n, "gradient_norm": 0.1}) + "\n" for n in range(2)))
    assert foreshock("detect", "--scores", str(scores), str(record)).returncode == 0
    head, *rows = scores.read_text().splitlines()
    assert head == "run,rank,step,detector,place,value,score,level"
    assert rows[0] == '"a,b",3,0,gradient_norm,,0.10000000000000001,0,quiet'
    assert len(rows) == 4
    assert foreshock("detect", "--scores", str(scores), str(record)).returncode == 1, "it is there already"
