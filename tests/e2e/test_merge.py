"""`foreshock merge`: the records of two nodes of one job as one, against the weights that the job gathered itself."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from monitored import EVERYTHING, PYTHON, Run, run_monitored
from records import record_lines
from scraping import free_port
from weight_checks import check_lines, check_models

TRAINING = str(Path(__file__).with_name("weights_training.py"))
SUPPORT = {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
STEPS = 6


def train_on_two_nodes(folder: Path, kind: str, *options: str) -> tuple[list[Run], list[Path]]:
    """One job of two nodes with two ranks each: each node has an agent and a base directory of its own."""
    port, records = free_port(), [folder / f"node{node}.jsonl" for node in range(2)]

    def node(number: int) -> Run:
        command = [PYTHON, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(number)]
        command += ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
        command += [TRAINING, str(folder), str(STEPS), kind]
        more = ("--weights", "1", "--run-id", "job", "--record", str(records[number]), *options)
        return run_monitored(command, *EVERYTHING, *more, **SUPPORT)

    with ThreadPoolExecutor() as nodes:
        runs = list(nodes.map(node, range(2)))
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    return runs, records


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """The folder of a fully sharded job, with the records of its nodes."""
    folder = tmp_path_factory.mktemp("fsdp")
    _, records = train_on_two_nodes(folder, "fsdp", "--record-histograms", "1GiB")
    return folder, records


def merged(foreshock, out: Path, *records: Path) -> Run:
    done = foreshock("merge", *map(str, records), "-o", str(out))
    assert done.returncode == 0, done.stderr
    return Run(0, done.stdout, done.stderr, None, record_lines(out))


def test_shards_of_two_nodes_are_the_whole(foreshock, sharded, tmp_path):
    folder, records = sharded
    for record in records:
        assert {(line["scope"], line["parts"]) for line in record_lines(record) if line["type"] == "tensor"} == {
            ("node", 2)
        }
    run = merged(foreshock, tmp_path / "job.jsonl", *records)
    assert {line["scope"] for line in run.of("tensor") + run.of("model")} == {"job"}
    assert {(line["parts"], line["ranks"]) for line in run.of("tensor")} == {(4, 4)}
    check_lines(folder, run, 1, STEPS)
    check_models(folder, run, 1, STEPS)
    assert "left out" not in run.stderr
    assert " 4 of 4 ranks" in run.stderr


def test_all_other_lines_are_there_in_the_order_of_steps(foreshock, sharded, tmp_path):
    _, records = sharded
    before = [line for record in records for line in record.read_text().splitlines()]
    others = sorted(text for text in before if json.loads(text)["type"] not in ("tensor", "model"))
    assert {json.loads(text)["type"] for text in others} >= {"run", "step", "sample"}
    run = merged(foreshock, tmp_path / "job.jsonl", *records)
    written = (tmp_path / "job.jsonl").read_text().splitlines()
    assert sorted(text for text in written if json.loads(text)["type"] not in ("tensor", "model")) == others
    steps = [line["step"] for line in run.lines if line.get("step") is not None]
    assert steps == sorted(steps)
    first = [(step["step"], step["rank"]) for step in run.of("step")]
    assert first == sorted(first)
    assert {rank for _, rank in first} == {0, 1, 2, 3}
    to_screen = foreshock("merge", *map(str, records[::-1]))
    assert sorted(to_screen.stdout.splitlines()) == sorted(written)


def refused(foreshock, *arguments: object) -> str:
    done = foreshock("merge", *map(str, arguments))
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("foreshock: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def changed(record: Path, path: Path, change) -> Path:
    """A copy of the record with change(line) in the place of each line; None: no line."""
    lines = [change(line) for line in record_lines(record)]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines if line is not None))
    return path


def test_what_cannot_be_merged_is_refused_in_one_line(foreshock, sharded, tmp_path):
    _, (one, two) = sharded
    assert "two nodes at least" in refused(foreshock, one)
    assert " is in both " in refused(foreshock, one, one)
    assert "No such file" in refused(foreshock, one, tmp_path / "missing.jsonl")
    assert "unknown option '--all'" in refused(foreshock, "--all", one, two)
    assert "is one of the records" in refused(foreshock, one, two, "-o", two)
    text = tmp_path / "text.jsonl"
    text.write_text("something else\n")
    assert "no line of it is a record's" in refused(foreshock, one, text)
    other = changed(two, tmp_path / "other.jsonl", lambda line: line | {"run": "another"})
    assert "of run another: only records of one run" in refused(foreshock, one, other)
    alone = changed(two, tmp_path / "alone.jsonl", lambda line: None if line["type"] == "tensor" else line)
    assert "values are in these records; name the record of every node" in refused(foreshock, one, alone)

    def like_the_first(line: dict) -> dict:
        if line["type"] == "tensor" and line["part_offsets"]:
            line["part_offsets"] = [0, *line["part_offsets"][1:]]
        return line

    assert "overlap" in refused(foreshock, one, changed(two, tmp_path / "overlap.jsonl", like_the_first))
    bare = [
        changed(record, tmp_path / f"bare{n}.jsonl", lambda line: {k: v for k, v in line.items() if k != "histogram"})
        for n, record in enumerate((one, two))
    ]
    assert "--record-histograms" in refused(foreshock, *bare)

    def broken(line: dict) -> dict:
        return line | {"histogram": "AAAA"} if line["type"] == "tensor" and line["step"] == 3 else line

    where = refused(foreshock, one, changed(two, tmp_path / "broken.jsonl", broken), "-o", tmp_path / "out.jsonl")
    assert "at step 3 cannot be read" in where
    assert {path.suffix for path in tmp_path.iterdir()} == {".jsonl"}, "nothing half written is left"
    assert not (tmp_path / "out.jsonl").exists()
    job = tmp_path / "job.jsonl"
    merged(foreshock, job, one, two)
    assert "is merged already" in refused(foreshock, job, two)


def test_a_snapshot_that_one_node_lacks_is_left_out_and_said(foreshock, sharded, tmp_path):
    _, (one, two) = sharded
    name = next(line["tensor"] for line in record_lines(two) if line["type"] == "tensor")

    def without(line: dict) -> dict | None:
        return None if (line["type"], line.get("tensor"), line.get("step")) == ("tensor", name, 4) else line

    run = merged(foreshock, tmp_path / "job.jsonl", one, changed(two, tmp_path / "less.jsonl", without))
    steps = [line["step"] for line in run.of("tensor") if line["tensor"] == name]
    assert 4 not in steps
    assert {3, 5} <= set(steps)
    assert "1 left out" in run.stderr
    five = next(line for line in run.of("tensor") if (line["tensor"], line["step"]) == (name, 5))
    assert five["previous_step"] is None, "an interval is missing"


@pytest.mark.long
def test_replicas_are_compared_across_nodes(foreshock, tmp_path):
    """Data-parallel ranks: every node holds the whole, without histograms in the record too."""
    runs, records = train_on_two_nodes(tmp_path, "ddp")
    for run in runs:
        assert {rank["weights"]["replicas"] for rank in run.summary["ranks"]} == {"here"}
    run = merged(foreshock, tmp_path / "job.jsonl", *records)
    check_lines(tmp_path, run, 1, STEPS)
    check_models(tmp_path, run, 1, STEPS)
    assert not run.of("event")
    assert {line["ranks"] for line in run.of("tensor")} <= {2, 3, 4}, "as many as were there when it was whole"

    def flipped(line: dict) -> dict:
        is_it = line["type"] == "tensor" and (line["tensor"], line["step"]) == ("head.weight", 3)
        return line | {"histogram_hash": "0" * 16} if is_it else line

    odd = merged(foreshock, tmp_path / "odd.jsonl", records[0], changed(records[1], tmp_path / "odd_1", flipped))
    (event,) = odd.of("event")
    assert (event["event"], event["step"]) == ("weight_mismatch", 3)
    assert event["detail"].startswith("head.weight differs between the nodes of ")
    assert "replicas differ between nodes 1 times" in odd.stderr
