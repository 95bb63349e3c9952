"""A user who attacks the agent with his own segment and his own directory, beside one who trains."""

import contextlib
import json
import os
import pathlib
import random
import threading
import time
from collections.abc import Iterator

import pytest
from scraping import wait_until
from segment_file import Segment

MOST_KIB_MORE = 64 * 1024  # what a thousand made-up layers, 64 runs and their pages may take, with room


@pytest.fixture
def victim(service, start_trainer) -> Iterator[tuple]:
    """A service, and a trainer of another user who must not notice anything."""
    trainer = start_trainer("ada", "job")
    trainer.do("hand.step(10)")
    wait_until(lambda: service.metric("steps_total", run="ada/job") == 10)
    yield service, trainer
    trainer.do("hand.step(10)")
    wait_until(lambda: service.metric("steps_total", run="ada/job") == 20)
    assert trainer.finish() == 0
    assert " finished, 20 steps in " in trainer.stderr()
    assert service.process.poll() is None
    assert service.get("/healthz") == "ok\n"


@contextlib.contextmanager
def scribbling(segment: pathlib.Path, seed: int) -> Iterator[None]:
    """Stores random words all over a segment, header and control file included, as fast as it can."""
    generator, stop = random.Random(seed), threading.Event()
    files = [os.open(segment, os.O_RDWR), os.open(segment.with_suffix(".ctl"), os.O_RDWR)]

    def scribble() -> None:
        sizes = [os.fstat(file).st_size for file in files]
        while not stop.is_set():
            which = generator.randrange(8) == 0
            words = generator.choice((b"\xff" * 8, b"\0" * 8, generator.randbytes(8), generator.randbytes(512)))
            os.pwrite(files[which], words, generator.randrange(sizes[which] // 8) * 8)

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for file in files:
            os.close(file)


def test_a_writer_that_scribbles_over_its_segment(victim, start_trainer, tree):
    service, _ = victim
    before = service.resident_kib()
    mallory = start_trainer("mallory", "job")
    mallory.do("hand.step(10)")
    wait_until(lambda: service.metric("rank_up", run="mallory/job") == 1)
    (segment,) = (tree / "mallory" / "job").glob("*.seg")
    # A copy under another name: the trainer's own mapping must not be what we destroy.
    for seed in range(3):
        copy = segment.with_name(f"{seed}-00000000000000{seed}1.seg")
        control = bytearray(segment.with_suffix(".ctl").read_bytes())
        copy.with_suffix(".ctl").write_bytes(control)
        copy.write_bytes(segment.read_bytes())
    with contextlib.ExitStack() as stack:
        for seed, path in enumerate(sorted((tree / "mallory" / "job").glob("*.seg"))):
            if path != segment:
                stack.enter_context(scribbling(path, seed))
        for _ in range(8):
            time.sleep(0.5)
            assert "foreshock_build_info" in service.get("/metrics")
            json.loads(service.get("/api/v1/state?run=mallory/job"))
    assert service.resident_kib() - before < MOST_KIB_MORE
    assert mallory.finish() == 0


def outside(folder: pathlib.Path) -> pathlib.Path:
    secret = folder / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    return secret


def test_a_directory_full_of_traps(victim, tree, tmp_path):
    service, _ = victim
    secret = outside(tmp_path)
    before = service.resident_kib()
    run = tree / "mallory" / "job"
    run.mkdir(parents=True)
    (run / "run.lock").touch()
    for name in ("agent.json.new", "summary.7.json", "summary.7.json.new", "0-1.seg", "0-1.ctl", "exit.9.json"):
        (run / name).symlink_to(secret)
    (run / "exit.7.json").write_text('{"state": "finished"}')
    (run / "exit.8.json").write_text("[" * 4096)
    for name in ("1-1.seg", "1-1.ctl", "exit.10.json"):
        os.mkfifo(run / name)
    other = tree / "other"
    other.write_text("secret")
    os.link(other, run / "2-1.seg")
    with (run / "3-1.seg").open("wb") as huge:
        huge.truncate(1 << 42)
    (run / "3-1.ctl").write_bytes(b"\0" * 4096)
    (run / "4-1.seg").mkdir()
    for n in range(3000):
        (run / f"5-{n}.seg").touch()
        (run / f"exit.{n + 100}.json").write_text('{"state": "failed"}')
    (run / "6-new\nline<b>.seg").touch()
    (tree / "mallory" / "new\nline<script>").mkdir()
    (tree / "mallory" / "new\nline<script>" / "run.lock").touch()
    (tree / "mallory" / "link").symlink_to("/")
    (tree / "mallory" / "up").symlink_to(tree / "ada")

    # The agent answers 3000 exits meanwhile, a few at a time: half a minute of a processor that it may have to share.
    refused = lambda: service.metric("monitor_errors_total", run="mallory/job", component="segment") or 0  # noqa: E731
    wait_until(lambda: refused() > 2999, seconds=600)
    time.sleep(2)
    assert secret.read_text() == "secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert (run / "exit.9.json").is_symlink()
    runs = {entry["run"] for entry in json.loads(service.get("/api/v1/state"))["runs"]}
    assert runs == {"ada/job", "mallory/job"}
    assert "<script>" not in service.get("/metrics")
    assert len(service.log.read_text().splitlines()) < 100, "the log does not grow with what is refused"
    assert service.resident_kib() - before < MOST_KIB_MORE


def test_thousands_of_directories(victim, tree):
    service, _ = victim
    for n in range(2000):
        run = tree / "mallory" / str(n)
        run.mkdir(parents=True)
        (run / "run.lock").touch()
    wait_until(lambda: len(json.loads(service.get("/api/v1/state"))["runs"]) > 60)
    assert len(json.loads(service.get("/api/v1/state"))["runs"]) == 64 + 1, "64 of one user, and the other's"


def test_an_agent_lock_that_is_a_link(victim, tree, tmp_path):
    service, _ = victim
    secret = outside(tmp_path)
    run = tree / "mallory" / "job"
    run.mkdir(parents=True)
    (run / "agent.lock").symlink_to(secret)
    (run / "run.lock").touch()
    wait_until(lambda: "mallory/job is not followed" in service.log.read_text())
    assert secret.read_text() == "secret"
    assert "mallory" not in service.get("/metrics")


def test_a_directory_that_is_exchanged_while_it_is_followed(victim, start_trainer, tree, tmp_path):
    service, _ = victim
    mallory = start_trainer("mallory", "job")
    mallory.do("hand.step(5)")
    wait_until(lambda: service.metric("rank_up", run="mallory/job") == 1)
    target = tmp_path / "target"
    target.mkdir()
    (tree / "mallory" / "job").rename(tree / "mallory" / ".away")
    (tree / "mallory" / "job").symlink_to(target)
    (tree / "mallory" / ".away" / "exit.77.json").write_text('{"state": "finished"}')
    wait_until((tree / "mallory" / ".away" / "summary.77.json").exists)
    assert list(target.iterdir()) == [], "nothing is written where the link leads"
    (tree / "mallory" / "job").unlink()
    (tree / "mallory" / ".away").rename(tree / "mallory" / "job")


def test_without_slices_nothing_is_copied(service, start_trainer, tree):
    trainer = start_trainer("ada", "job", "--slices", "off")
    trainer.do("hand.step(30)")
    wait_until(lambda: service.metric("steps_total", run="ada/job") == 30)
    (segment,) = (tree / "ada" / "job").glob("*.seg")
    assert Segment(segment).slots == 0, "there is no room for one"
    calls = {"run": "ada/job", "pass": "forward"}
    assert service.metric("attention_samples_total", **calls) == 0
    assert service.metric("monitor_enabled", run="ada/job", component="slices") == 0
    assert service.metric("loss", run="ada/job") is not None
    assert trainer.finish() == 0
    assert "30 steps" in trainer.stderr()
