"""The optimizer's health, as the record has it, beside torch."""

import functools
import json
import pathlib
import tempfile

import numpy as np
import pytest
from forked import forked
from monitored import EVERYTHING, PYTHON, Run, run_monitored
from tiers import keep

SCRIPT = str(pathlib.Path(__file__).with_name("optimizer_training.py"))
ADAM = ["fused", "foreach", "loop", "compiled", "bf16", "ddp", "fsdp", "two", "closure"]
CASES = [*ADAM, "signs", "fused_qkv"]
KEPT = ("signs", "fused_qkv")
RANKS = {"ddp": 2, "fsdp": 2}
STEPS = 8
FIGURES = ("rms_staleness", "epsilon_dominated_ratio", "update_ratio", "gradient_rms")


class Training:
    def __init__(self, case: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = forked(SCRIPT, case, folder)
            if case in RANKS:
                ranks = ["--standalone", "--nproc-per-node", str(RANKS[case])]
                command = [PYTHON, "-m", "torch.distributed.run", *ranks, SCRIPT, case, folder]
            self.run: Run = run_monitored(command, *EVERYTHING, "--weights", "1")
            assert self.run.returncode == 0, self.run.stderr
            self.told = json.loads((pathlib.Path(folder) / "told.json").read_text())

    def lines(self) -> list[dict]:
        """Each tensor once a step, however many ranks have it."""
        found = self.run.of("optimizer")
        assert len({(line["tensor"], line["step"]) for line in found}) == len(found)
        assert {line["tensor"] for line in found} == self.told[0].keys()
        assert len(found) >= (STEPS - 2) * len(self.told[0])  # the first steps come before the names
        assert all(line["elements"] == line["whole_elements"] for line in found)
        return found


@functools.cache
def training_of(case: str) -> Training:
    return Training(case)


def check_adam(line: dict, told: dict) -> None:
    assert (line["beta1"], line["beta2"], line["epsilon"], line["weight_decay"]) == (0.9, 0.99, 1e-5, 0.01)
    if line["step"] == 1:
        assert line["surprise_ratio"] is None, "there was no second moment to be surprised by"
    else:
        assert told["surprise_low"] <= line["surprise_ratio"] <= told["surprise_high"]


@pytest.mark.parametrize("case", keep(CASES, *KEPT))
def test_as_torch_computes_it(case):
    """To 1e-6: sums in fp64 of the same stored values."""
    training = training_of(case)
    lines = training.lines()
    for line in lines:
        told = training.told[line["step"] - 1][line["tensor"]]
        for figure in FIGURES:
            if figure == "update_ratio" and case == "compiled":
                assert line[figure] is None, "what a compiled step finds is not seen"
            elif figure not in told:
                assert line[figure] is None, (line, figure)
            else:
                assert line[figure] == pytest.approx(told[figure], rel=1e-6, abs=1e-12), (line, figure)
        assert line["learning_rate"] == pytest.approx(1e-3)
        assert line["nonfinite_gradient_values"] == 0
        if "rms_staleness" in told:
            check_adam(line, told)
        else:
            assert line["beta2"] is line["surprise_ratio"] is None
    known = [line for line in lines if line["rms_staleness"] is not None]
    assert bool(known) == (case != "signs")
    assert not known or any(line["epsilon_dominated_ratio"] > 0 for line in known)


@pytest.mark.parametrize("case", keep(CASES, *KEPT))
def test_the_summary_pools_what_every_tensor_told_last(case):
    training = training_of(case)
    optimizer = training.run.rank()["optimizer"]
    last = {line["tensor"]: line for line in training.run.of("optimizer")}
    for figure, stat in (("rms_staleness", "max"), ("update_ratio", "max")):
        known = {name: line[figure] for name, line in last.items() if line[figure] is not None}
        if figure == "update_ratio":  # of matrices
            shapes = {line["tensor"]: line["shape"] for line in training.run.of("tensor")}
            known = {name: value for name, value in known.items() if len(shapes[name]) == 2}
        if not known:
            assert optimizer[figure] == {"mean": None, "max": None, "tensor": None}
            continue
        worst = max(known, key=known.__getitem__)
        assert optimizer[figure]["tensor"] == worst
        assert optimizer[figure][stat] == pytest.approx(known[worst], rel=1e-12)
    elements = {name: line["elements"] for name, line in last.items()}
    pooled = sum(elements[name] * line["gradient_rms"] ** 2 for name, line in last.items()) / sum(elements.values())
    assert optimizer["gradient_rms"] == pytest.approx(np.sqrt(pooled), rel=1e-12)
