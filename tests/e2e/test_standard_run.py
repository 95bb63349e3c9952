"""One training with every call and every weight sampled, and what all parts say of it.

`./dev test --quick` has no other training; the tests beside this one vary it.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import math
import pathlib
import subprocess

import pytest
from monitored import EVERYTHING_AND_WEIGHTS, FORESHOCK, PYTHON, Run, assert_conserved, run_monitored, run_plain

pytestmark = pytest.mark.quick

SCRIPT = str(pathlib.Path(__file__).with_name("bits_training.py"))
STEPS, LAYERS = 8, 3
BLOCKS = [f"{layer:03d}" for layer in range(LAYERS)]


@dataclasses.dataclass
class Standard:
    plain: Run
    run: Run
    record: pathlib.Path


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> Standard:
    command = [PYTHON, SCRIPT, "eager"]
    with concurrent.futures.ThreadPoolExecutor(2) as two:
        plain = two.submit(run_plain, command)
        run = run_monitored(command, *EVERYTHING_AND_WEIGHTS)
    record = tmp_path_factory.mktemp("standard") / "record.jsonl"
    record.write_text("".join(json.dumps(line) + "\n" for line in run.lines))
    return Standard(plain.result(), run, record)


def test_bits_are_those_of_the_plain_training(standard: Standard) -> None:
    assert standard.run.told() == standard.plain.told()


def test_every_attention_call_is_counted(standard: Standard) -> None:
    rank = standard.run.rank()
    assert_conserved(rank)
    assert {name: of["calls"] for name, of in rank["attention"].items()} == {
        "forward": STEPS * LAYERS, "backward": STEPS * LAYERS,
    }  # fmt: skip


def test_every_sample_is_judged(standard: Standard) -> None:
    for of in standard.run.rank()["attention"].values():
        assert of["judged"] == of["sampled"] > STEPS * LAYERS // 2, of


def test_every_layer_is_sampled_in_both_passes(standard: Standard) -> None:
    found = {(line["pass"], line["layer"]) for line in standard.run.of("sample")}
    assert found >= {(name, layer) for name in ("forward", "backward") for layer in BLOCKS}


def test_deviation_is_near_that_of_plain_attention(standard: Standard) -> None:
    ratios = [line["deviation_ratio"] for line in standard.run.of_rows() if line["deviation_ratio"] is not None]
    assert ratios
    assert max(ratios) < 2, "the alarm of the forward pass"


def test_every_step_is_recorded_once_and_in_order(standard: Standard) -> None:
    assert [line["step"] for line in standard.run.of("step")] == list(range(1, STEPS + 1))
    rank = standard.run.rank()
    assert rank["steps"] == rank["step"] == STEPS


def test_losses_are_those_of_the_training(standard: Standard) -> None:
    (told,) = standard.run.told()
    assert [line["loss"] for line in standard.run.of("step")] == pytest.approx(told["losses"], rel=1e-6)


def test_gradient_norms_are_finite_and_known(standard: Standard) -> None:
    norms = [line["gradient_norm"] for line in standard.run.of("step")]
    assert all(norm is not None and 0 < norm < math.inf for norm in norms[1:])
    assert standard.run.rank()["gradient"]["nonfinite_layers"] == []


def test_every_weight_is_measured(standard: Standard) -> None:
    tensors = {line["tensor"] for line in standard.run.of("tensor")}
    # Of each block ten parameters beside its two norms' four, and those around the blocks.
    assert {name for name in tensors if name.startswith("blocks.")} >= {
        f"blocks.{layer}.{part}.weight"
        for layer in range(LAYERS)
        for part in ("query", "key", "value", "out", "up", "down", "norm1", "norm2")
    }
    assert {"embedding.weight", "head.weight"} <= tensors
    assert standard.run.rank()["weights"]["snapshots"] == len(standard.run.of("tensor"))


def test_optimizer_is_recorded_for_every_measured_weight(standard: Standard) -> None:
    lines = standard.run.of("optimizer")
    assert {line["tensor"] for line in lines} == {line["tensor"] for line in standard.run.of("tensor")}
    assert all(line["learning_rate"] == pytest.approx(3e-3) for line in lines)


def test_healthy_run_has_no_event(standard: Standard) -> None:
    assert standard.run.of("event") == []
    assert not standard.run.rank()["attention_unseen"]


def foreshock(*words: str | pathlib.Path) -> subprocess.CompletedProcess:
    done = subprocess.run([FORESHOCK, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_record_is_exported(standard: Standard, tmp_path: pathlib.Path) -> None:
    done = foreshock("export", "--csv", tmp_path, standard.record)
    assert done.stderr == f"foreshock: {len(standard.run.lines)} lines exported\n"
    assert len((tmp_path / "step.csv").read_text().splitlines()) == 1 + STEPS


def test_record_is_replayed_without_an_event(standard: Standard) -> None:
    assert len(foreshock("detect", standard.record).stdout.splitlines()) == 1, "the titles of the columns"


def test_record_becomes_a_report(standard: Standard, tmp_path: pathlib.Path) -> None:
    foreshock("report", standard.record, "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert standard.run.lines[0]["run"] in page
