"""Sound trainings of 73 kinds: none has a finding, nor a thing worth a look."""

import pathlib
import re

import pytest
from forked import forked
from monitored import run_monitored, unwrapped
from tiers import keep

HERE = pathlib.Path(__file__).parent
SCRIPT = str(HERE / "kinds_training.py")
# Read and not imported, since an import of torch takes seconds.
KINDS = [
    name for file in HERE.glob("kinds_of_*.py") for name in re.findall(r"^@kind\ndef (\w+)", file.read_text(), re.M)
]
IN_BLOCKS = ("game_in_blocks", "blocks_of_two_optimizers")


@pytest.mark.parametrize("kind", keep(KINDS, "attacked"))
def test_a_sound_training_is_not_accused(kind, tmp_path):
    run = run_monitored(forked(SCRIPT, kind, "200", str(tmp_path)))
    assert run.returncode == 0, run.stderr
    # Not the headline: a slow machine checks few samples of a short run, and frozen layers have no backward pass.
    assert run.summary["findings"] == []
    assert [each["text"] for each in run.summary["conditions"]] == []


@pytest.mark.parametrize("kind", keep(IN_BLOCKS, "game_in_blocks"))
def test_steps_of_optimizers_that_take_turns_in_blocks_are_counted(kind, tmp_path):
    """Only the first block of the second optimizer begins at its own step: the two could be two trainings."""
    run = run_monitored(forked(SCRIPT, kind, "200", str(tmp_path)), "--every", "1", "--max-slowdown", "50%")
    assert run.returncode == 0, run.stderr
    assert [line["step"] for line in run.of("event") if line["event"] == "resumed"] == [2]
    steps = [line["step"] for line in run.of("step")]
    counted = steps[steps.index(2, 2) :]
    assert counted == list(range(2, 2 + len(counted)))
    assert len(counted) > 150
    assert "not judged: optimizers take turns" in unwrapped(run.stderr)
    names = {line["tensor"]: line["shape"] for line in run.of("tensor")}
    assert all(line["shape"] == names[line["tensor"]] for line in run.of("tensor")), "a name is that of one tensor"
