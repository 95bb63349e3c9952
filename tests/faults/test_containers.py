"""Two containers of one job share the run directory of their node: in each, every process has the pid it has in the
other."""

import subprocess

import pytest
from fault_scene import Scene, assert_conserved

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--")


@pytest.fixture(autouse=True)
def containers() -> None:
    done = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("a pid namespace cannot be made here: " + done.stderr.strip())


def start(scene: Scene, rank: int) -> subprocess.Popen:
    line = [*CONTAINER, *scene.run_line(), *scene.trainer_line("40", "return", "wait")]
    return scene.start_half_way(line, RANK=str(rank), WORLD_SIZE="2")


@pytest.mark.parametrize("ends", [(1, 0), (0, 1)])
def test_each_launcher_has_the_summary_of_its_own_ranks(scene, ends):
    """The agent is in the first container, and is killed with it."""
    processes, go_files = [], []
    for rank in range(2):
        scene.rounds = rank
        processes.append(start(scene, rank))
        go_files.append(scene.go_file)
    for rank in ends:
        scene.rounds, scene.go_file = rank, go_files[rank]
        outcome = scene.go_on(processes[rank])
        assert outcome.returncode == 0
        assert outcome.said == []
        assert_conserved(outcome.summary)
        assert [of["rank"] for of in outcome.summary["ranks"]] == [rank]
        assert (outcome.summary["state"], outcome.summary["other_ranks"]) == ("finished", 1)
    assert scene.left_files() == []
