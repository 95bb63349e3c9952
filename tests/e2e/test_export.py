"""`foreshock export`: a record as tables and as TensorBoard event files, read back by other programs' readers."""

import csv
import gzip
import json
import math
import pathlib
import resource
import subprocess

import pytest
from monitored import FORESHOCK

pytestmark = pytest.mark.quick


def step(number: int, **more: object) -> dict:
    return {"schema": 1, "type": "step", "run": "r", "rank": 0, "step": number, "time": 100.0 + number} | more


def sample(number: int, layer: str, ratio: float) -> dict:
    facts = {"layer": layer, "pass": "forward", "fused_ratio": ratio, "heads": [0, 1]}
    return step(number) | {"type": "sample"} | facts


@pytest.fixture
def record(tmp_path):
    """record(*lines, end=""): a file of these lines (dicts or text) and the bytes `end`."""

    def write(*lines: object, end: str = "") -> pathlib.Path:
        path = tmp_path / "record.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("".join(text + "\n" for text in texts) + end)
        return path

    return write


def read_csv(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_scalars(folder: pathlib.Path) -> dict[str, list]:
    """{tag: [(step, value, wall time), ...]} as TensorBoard itself reads the folder."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value, e.wall_time) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tables(foreshock, record, tmp_path):
    path = record(step(1, loss=0.1), sample(1, "a,b", 0.5), step(2, loss=None, nonfinite=["loss"]))
    done = foreshock("export", "--csv", str(tmp_path / "out"), str(path))
    assert (done.returncode, done.stderr) == (0, "foreshock: 3 lines exported\n")
    first, second = read_csv(tmp_path / "out" / "step.csv")
    assert (first["step"], float(first["loss"]), first["gradient_norm"]) == ("1", 0.1, "")
    assert math.isnan(float(second["loss"]))
    (row,) = read_csv(tmp_path / "out" / "sample.csv")
    assert (row["layer"], row["heads"], row["fused_ratio"]) == ("a,b", "0 1", "0.5")
    assert not (tmp_path / "out" / "event.csv").exists()


def test_tensorboard_reads_what_is_written(foreshock, record, tmp_path):
    lines = [step(1, loss=2.5), sample(1, "000", 0.5), sample(1, "001", 0.75), step(2, loss=None, nonfinite=["loss"])]
    event = step(2) | {"type": "event", "event": "loss_spike", "value": 9.0}
    done = foreshock("export", "--tensorboard", str(tmp_path / "out"), str(record(*lines, event, step(1, rank=1))))
    assert done.returncode == 0, done.stderr
    scalars = read_scalars(tmp_path / "out" / "r" / "rank_0")
    (first, second) = scalars["training/loss"]
    assert first == (1, 2.5, 101.0)
    assert second[0] == 2
    assert math.isnan(second[1])
    assert scalars["attention_forward/fused_ratio"] == [(1, 0.625, 101.0)]
    assert scalars["layer_fused_ratio_forward/001"] == [(1, 0.75, 101.0)]
    assert scalars["event/loss_spike"] == [(2, 9.0, 102.0)]


def test_a_record_of_a_real_run(start_hand, foreshock, tmp_path):
    """Every step and every judged sample of the summary arrives in both formats."""
    trainer = start_hand("me")
    trainer.do("hand.step(30)")
    assert trainer.finish() == 0
    for kind in ("csv", "tensorboard"):
        done = foreshock("export", f"--{kind}", str(tmp_path / kind), str(trainer.record))
        assert (done.returncode, "left out" in done.stderr) == (0, False), done.stderr
    steps, samples = (read_csv(tmp_path / "csv" / f"{kind}.csv") for kind in ("step", "sample"))
    (rank,) = json.loads(trainer.summary.read_text())["ranks"]
    assert (len(steps), len(samples)) == (30, sum(of["judged"] for of in rank["attention"].values()))
    assert len(samples) > 0
    losses = [value for _, value, _ in read_scalars(tmp_path / "tensorboard" / "me" / "rank_0")["training/loss"]]
    assert losses == pytest.approx([float(row["loss"]) for row in steps], rel=2**-24)  # TensorBoard keeps fp32


def test_what_cannot_be_read_is_told(foreshock, record, tmp_path):
    path = record("junk", step(1), {"schema": 9, "type": "step"}, end='{"schema":1,"ty')
    done = foreshock("export", "--csv", str(tmp_path / "out"), str(path))
    told = "1 lines exported, 2 left out (line 1: not JSON); the last line was cut off when its writer ended"
    assert (done.returncode, done.stderr) == (0, f"foreshock: {told}\n")
    assert len(read_csv(tmp_path / "out" / "step.csv")) == 1


def test_a_file_that_is_no_record_fails(foreshock, record, tmp_path):
    path = record("no", "record")
    done = foreshock("export", "--csv", str(tmp_path / "out"), str(path))
    assert (done.returncode, done.stderr) == (
        1, f"foreshock: {path}: no line of it is a record's (line 1: not JSON)\n",
    )  # fmt: skip


def test_nothing_is_overwritten(foreshock, record, tmp_path):
    path = record(step(1, loss=1.0))
    for kind, file in (("csv", "step.csv"), ("tensorboard", "r/rank_0/events.out.tfevents.0.foreshock")):
        folder = tmp_path / kind
        assert foreshock("export", f"--{kind}", str(folder), str(path)).returncode == 0
        before = (folder / file).read_bytes()
        again = foreshock("export", f"--{kind}", str(folder), str(path))
        assert again.returncode == 1
        assert again.stderr == f"foreshock: {folder / file}: is there already; choose another directory\n"
        assert (folder / file).read_bytes() == before


@pytest.mark.parametrize("kind", ["csv", "tensorboard"])
def test_what_the_disk_does_not_take_leaves_nothing(record, tmp_path, kind):
    """All files or none: another program would take half a table for the whole. Some files fit, others do not."""
    path = record(*(step(n, rank=n // 1000, loss=1.0) for n in range(1100)), sample(1100, "a", 0.5))
    for folder in ("new/out", "."):
        done = subprocess.run(
            [FORESHOCK, "export", f"--{kind}", tmp_path / folder, path],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert ": File too large; none of the files is there: mend that, or choose another directory" in done.stderr
        assert [entry.name for entry in tmp_path.rglob("*")] == ["record.jsonl"]


def test_a_folder_that_cannot_be_made_is_told_by_its_reason(foreshock, record, tmp_path):
    path = record(step(1, loss=1.0))
    done = foreshock("export", "--csv", f"{path}/out", str(path))
    assert (done.returncode, "Not a directory" in done.stderr) == (1, True), done.stderr
    done = foreshock("export", "--csv", "/proc/self/out/in", str(path))
    assert done.stderr.startswith("foreshock: cannot make /proc/self/out: ")


def test_more_ranks_than_files_that_are_usual(record, tmp_path):
    path = record(*(step(1, rank=rank, loss=1.0) for rank in range(300)))
    done = subprocess.run(
        [FORESHOCK, "export", "--tensorboard", tmp_path / "out", path],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 1024)),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out" / "r").iterdir())) == 300


def test_a_compressed_record_is_told_so(foreshock, tmp_path):
    path = tmp_path / "record.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(step(1)).encode()))
    for words in (("export", "--csv", str(tmp_path / "out")), ("detect",)):
        done = foreshock(*words, str(path))
        says = f"foreshock: {path}: no line of it is a record's (line 1: compressed: unpack it first)\n"
        assert (done.returncode, done.stderr) == (1, says)


def test_a_record_with_nothing_to_draw_is_told_so(foreshock, record, tmp_path):
    path = record({"schema": 1, "type": "run", "run": "r", "rank": 0, "state": "started", "time": 1.0})
    done = foreshock("export", "--tensorboard", str(tmp_path / "out"), str(path))
    says = f"foreshock: {path}: no line has a value of a step to draw; --csv takes every line\n"
    assert (done.returncode, done.stderr, (tmp_path / "out").exists()) == (1, says, False)


def test_names_from_a_record_stay_inside_the_folder(foreshock, record, tmp_path):
    path = record(step(1, loss=1.0) | {"run": "../../escaped"})
    assert foreshock("export", "--tensorboard", str(tmp_path / "in" / "out"), str(path)).returncode == 0
    assert [p.name for p in (tmp_path / "in" / "out").iterdir()] == ["_.._.._escaped"]
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize(
    "words", [[], ["--csv", "d"], ["--csv", "d", "--tensorboard", "e", "f"], ["f"], ["--csv", "d", "f", "g"]]
)
def test_wrong_use(foreshock, words):
    done = foreshock("export", *words)
    assert done.returncode == 2
    assert done.stderr == "foreshock: type: foreshock export --tensorboard DIR|--csv DIR RECORD.jsonl\n"
