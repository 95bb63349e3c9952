"""Real trainings under faults: ways to end with a DataLoader's worker alive, and a home that cannot be written."""

import subprocess
import tempfile
from pathlib import Path

import live
import pytest
from fault_scene import assert_conserved
from monitored import PYTHON
from tiers import keep

TRAINING = str(Path(__file__).with_name("torch_training.py"))


def outcome(scene, line: list[str], **environment: str):
    """One exit: the time a real training takes to end is its own, and varies more than anything of ours."""
    support = str(Path(live.__file__).parent)
    environment |= {"PYTHONPATH": support, "TORCHINDUCTOR_CACHE_DIR": str(scene.folder / "inductor")}
    # Short: torch's compile workers have sockets there, whose names have room for 107 bytes.
    with tempfile.TemporaryDirectory(prefix="fs-") as environment["TMPDIR"]:
        result = scene.end(scene.start([*line, PYTHON, TRAINING], **environment))
    result.delays.clear()
    return result


@pytest.mark.parametrize("ending", keep(["_exit", "segv", "kill"], "kill"))
def test_endings(scene, told, ending):
    shell = ["sh", "-c", f'ulimit -c 0; exec "$@" {ending}', "sh"]
    plain, watched = outcome(scene, shell), outcome(scene, [*scene.run_line(), *shell])
    told(f"torch training ends by {ending}", scene, plain, watched)
    assert_conserved(watched.summary)
    assert [rank["steps"] for rank in watched.summary["ranks"]] == [10]


@pytest.mark.long
def test_read_only_home_without_an_adapter(scene, told, mounted):
    """No adapter can be built: it trains unwatched, and one line says what to do."""
    home = mounted("size=64k")
    subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)
    here = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "FORESHOCK_CACHE": ""}
    plain, watched = outcome(scene, [], **here), outcome(scene, scene.run_line(), **here)
    told("read-only home, torch without an adapter", scene, plain, watched, "not monitoring: ")
