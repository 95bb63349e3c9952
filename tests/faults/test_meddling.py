"""What somebody does, while a trainer trains, to the trainer, its agent, its launcher and their files."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

import pytest
from fault_scene import RUN_ID, assert_conserved, assert_same_result
from records import record_lines
from scraping import wait_until


@pytest.fixture
def half_way(scene):
    """The plain outcome, and a monitored trainer that waits in its middle."""
    plain = scene.plain_half_way()
    process = scene.start_half_way([*scene.run_line(), *scene.waiting_line()])
    yield plain, process
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.trainer, signal.SIGKILL)
    process.kill()


def steps(watched) -> list[int]:
    return [rank["steps"] for rank in watched.summary["ranks"]]


def test_trainer_stopped_and_continued(scene, told, half_way):
    plain, process = half_way
    os.kill(process.trainer, signal.SIGSTOP)
    time.sleep(1)
    os.kill(process.trainer, signal.SIGCONT)
    watched = scene.go_on(process)
    told("SIGSTOP, SIGCONT of the trainer", scene, plain, watched)
    assert_conserved(watched.summary)
    assert steps(watched) == [40] * 7


def test_trainer_killed(scene, told, half_way):
    _, process = half_way
    os.kill(process.trainer, signal.SIGKILL)
    watched = scene.go_on(process)
    plain_process = scene.start_half_way(scene.waiting_line())
    os.kill(plain_process.trainer, signal.SIGKILL)
    told("kill -9 of the trainer", scene, scene.go_on(plain_process), watched)
    assert_conserved(watched.summary)
    assert steps(watched) == [20] + [40] * 6


def test_agent_stopped_and_continued(scene, told, half_way):
    plain, process = half_way
    os.kill(agent := scene.agent(), signal.SIGSTOP)
    scene.go_file.touch()
    time.sleep(1)
    os.kill(agent, signal.SIGCONT)
    watched = scene.go_on(process)
    told("SIGSTOP, SIGCONT of the agent", scene, plain, watched)
    assert_conserved(watched.summary)
    assert steps(watched) == [40] * 7


def test_agent_stopped_for_good(scene, told, half_way):
    plain, process = half_way
    os.kill(agent := scene.agent(), signal.SIGSTOP)
    try:
        watched = scene.go_on(process)  # says nothing, so nobody gave up waiting for the agent
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(agent, signal.SIGCONT)
    told("SIGSTOP of the agent", scene, plain, watched)
    assert_conserved(watched.summary)
    assert steps(watched) == [40] * 7


def test_agent_killed(scene, told, half_way):
    plain, process = half_way
    os.kill(agent := scene.agent(), signal.SIGKILL)
    wait_until(lambda: scene.agent() not in (None, agent))
    watched = scene.go_on(process)
    told("kill -9 of the agent", scene, plain, watched)
    assert_conserved(watched.summary)
    assert steps(watched) == [40] * 7


def test_launcher_killed(scene, told, half_way):
    plain, process = half_way
    os.kill(process.pid, signal.SIGKILL)
    agent = scene.agent()
    watched = scene.go_on(process)
    assert watched.returncode == -signal.SIGKILL
    watched.returncode = plain.returncode  # nobody is left to tell it
    # The agent stays until it is sure that nothing comes any more, and takes the files with it.
    wait_until(lambda: not os.path.exists(f"/proc/{agent}"))
    told("kill -9 of the launcher", scene, plain, watched)


def test_agent_upgraded(scene, told, tmp_path):
    root = scene.own_installation()
    plain = scene.plain_half_way()
    record = tmp_path / "record.jsonl"
    process = scene.start_half_way([*scene.run_line("--record", str(record)), *scene.waiting_line()])
    wait_until(lambda: all(of["judged"] == of["sampled"] > 0 for of in scene.segments()[0].attention().values()))
    agent = scene.agent()
    shutil.copy2(root / "bin" / "foreshock", root / "bin" / "new")
    (root / "bin" / "new").rename(root / "bin" / "foreshock")
    os.kill(agent, signal.SIGTERM)
    wait_until(lambda: scene.agent() not in (None, agent))
    assert os.path.samefile(f"/proc/{scene.agent()}/exe", root / "bin" / "foreshock")
    watched = scene.go_on(process)
    told("agent upgraded", scene, plain, watched)
    assert_conserved(watched.summary)
    assert steps(watched) == [40] * 7
    lines = record_lines(record)
    judged = sum(of["judged"] for rank in watched.summary["ranks"] for of in rank["attention"].values())
    samples = [line for line in lines if line["type"] == "sample" and line["tensor"] in ("out", "grad_query")]
    assert len(samples) == judged > 0
    assert len([line for line in lines if line["type"] == "step"]) == 40 * 7


def test_agent_killed_and_gone_for_good(scene, told):
    """Its binary is gone too: nobody judges, and the run says so."""
    root = scene.own_installation()
    plain = scene.plain_half_way()
    process = scene.start_half_way([*scene.run_line(), *scene.waiting_line()])
    (root / "bin" / "foreshock").unlink()
    os.kill(scene.agent(), signal.SIGKILL)
    told("agent killed, its binary removed", scene, plain, scene.go_on(process), "no summary: ")


def test_library_removed(scene, told):
    root = scene.own_installation()
    plain = scene.plain_half_way()
    process = scene.start_half_way([*scene.run_line(), *scene.waiting_line()])
    (root / "lib" / "libforeshock.so").unlink()
    watched = scene.go_on(process)
    told("library removed", scene, plain, watched)
    assert_conserved(watched.summary)
    assert steps(watched) == [40], "what starts later is not watched"


def test_run_directory_removed(scene, told, half_way):
    plain, process = half_way
    shutil.rmtree(scene.base / RUN_ID)
    told("run directory removed", scene, plain, scene.go_on(process), "no summary: ")


def test_agent_gone_for_good_that_wrote_into_a_pipe(scene, told, tmp_path):
    """The launcher looks for the last step of the record, but not in a pipe, where it would wait for a writer."""
    root = scene.own_installation()
    plain = scene.plain_half_way()
    os.mkfifo(tmp_path / "record")
    reader = os.open(tmp_path / "record", os.O_RDONLY | os.O_NONBLOCK)
    process = scene.start_half_way([*scene.run_line("--record", str(tmp_path / "record")), *scene.waiting_line()])
    (root / "bin" / "foreshock").unlink()
    os.kill(scene.agent(), signal.SIGKILL)
    watched = scene.go_on(process)
    os.close(reader)
    told("agent killed, its record a pipe", scene, plain, watched, "no summary: ")


def notices(scene) -> str:
    """What the launcher prints while the command runs."""
    path = scene.base / RUN_ID / "notices"
    return path.read_text() if path.exists() else ""


def test_record_removed(scene, told, tmp_path):
    """Reported while the training still waits in its middle."""
    plain = scene.plain_half_way()
    record = tmp_path / "record.jsonl"
    process = scene.start_half_way([*scene.run_line("--record", str(record)), *scene.waiting_line()])
    wait_until(lambda: record.stat().st_size > 0)
    record.unlink()
    line = f"record {record}: another program has moved or removed it; it goes on"
    wait_until(lambda: line in notices(scene))
    watched = scene.go_on(process)
    told("record removed", scene, plain, watched, (line, "the record is incomplete: "))
    assert_conserved(watched.summary)
    assert watched.summary["record_complete"] is False
    lines = record_lines(record)
    assert len([line for line in lines if line["type"] == "step"]) >= 20 + 40 * 6


def test_a_second_agent_ends_at_once(scene, told, half_way):
    plain, process = half_way
    agent = scene.agent()
    command = [scene.foreshock, "agent", "--dir", str(scene.base / RUN_ID)]
    second = subprocess.run(command, env=scene.environment(), capture_output=True, text=True, timeout=120, check=False)
    line = f"foreshock agent: another agent follows the run in {scene.base / RUN_ID}; this one ends\n"
    assert (second.returncode, second.stderr) == (0, line)
    assert scene.agent() == agent
    watched = scene.go_on(process)
    told("two agents", scene, plain, watched)
    assert_conserved(watched.summary)
    assert steps(watched) == [40] * 7


def test_two_jobs_of_one_name(scene, told, half_way):
    """The second one trains unwatched and says so; the first one is not disturbed."""
    plain, process = half_way
    first_round, scene.rounds = scene.rounds, scene.rounds + 1
    second = scene.end(scene.start([*scene.run_line(), *scene.trainer_line("40", "return", exits=7)]))
    again = scene.rounds
    scene.rounds = first_round
    watched = scene.go_on(process)
    scene.rounds = again
    assert_same_result(scene.plain("40", "return"), second)
    assert len(second.said) == 1
    assert "monitoring was off in 7 processes (rank_taken)" in second.said[0]
    told("two jobs of the same name", scene, plain, watched)
    assert_conserved(watched.summary)
    assert steps(watched) == [40] * 7
