"""Trainers without Python (integrations/cxx): a C program that describes its own attention, and a C++ program on
LibTorch that is seen without a changed line, or tells its names and steps."""

import hashlib
import pathlib
import subprocess

import monitored
import native
import pytest
from monitored import EVERYTHING, run_monitored, run_plain, unwrapped
from segment_file import assert_calls_conserved, segments

STEPS, LAYERS = 24, 3


@pytest.fixture(scope="module")
def libtorch_trainer(tmp_path_factory) -> str:
    return str(native.link_libtorch_trainer(tmp_path_factory.mktemp("libtorch")))


@pytest.fixture(scope="module")
def c_trainer(tmp_path_factory) -> str:
    return str(native.build_c_trainer(tmp_path_factory.mktemp("c")))


def digest(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def under_run(folder: pathlib.Path, command: list[str], dump: list[str], *options: str) -> monitored.Run:
    """The command under `foreshock run`, after it has been shown to change no bit of it."""
    alone, watched = folder / "alone", folder / "watched"
    plain = run_plain([*command, *dump, str(alone)])
    run = run_monitored([*command, *dump, str(watched)], "--preload", *EVERYTHING, *options)
    assert plain.returncode == run.returncode == 0, run.stderr
    assert plain.stdout == run.stdout
    assert digest(alone) == digest(watched)
    monitored.assert_conserved(run.rank())
    return run


def libtorch_run(trainer: str, folder: pathlib.Path, *words: str) -> monitored.Run:
    command = [trainer, "--steps", str(STEPS), "--layers", str(LAYERS), *words]
    return under_run(folder, command, ["--dump"])


def test_libtorch_is_seen_without_a_changed_line(libtorch_trainer, tmp_path):
    run = libtorch_run(libtorch_trainer, tmp_path)
    rank = run.rank()
    assert {name: of["calls"] for name, of in rank["attention"].items()} == {
        "forward": STEPS * LAYERS, "backward": STEPS * LAYERS,
    }  # fmt: skip
    assert (rank["steps"], rank["step_source"]) == (STEPS, "counted")
    assert rank["loss"]["source"] == "nll"
    samples = run.of("sample")
    assert {sample["pass"] for sample in samples} == {"forward", "backward"}
    # Nobody has named a parameter: calls are numbered as they come, and the backward ones the other way round.
    for sample in samples:
        place = sample["call"] % (2 * LAYERS)
        layer = place if place < LAYERS else 2 * LAYERS - 1 - place
        assert sample["layer_source"] in ("ordinal", "unknown")
        assert sample["layer"] in (f"call{layer:03d}", None), sample
    assert any(sample["layer_source"] == "ordinal" for sample in samples)


def test_libtorch_that_tells_names_and_steps(libtorch_trainer, tmp_path):
    run = libtorch_run(libtorch_trainer, tmp_path, "--annotate")
    rank = run.rank()
    assert (rank["steps"], rank["step_source"]) == (STEPS, "reported")
    assert rank["loss"]["source"] == "reported"
    for sample in run.of("sample"):
        place = sample["call"] % (2 * LAYERS)
        layer = place if place < LAYERS else 2 * LAYERS - 1 - place
        assert (sample["layer_source"], sample["layer"]) == ("parameter", f"{layer:03d}"), sample
    assert [line["step"] for line in run.of("step")] == list(range(1, STEPS + 1))
    assert all(line["gradient_norm"] > 0 for line in run.of("step")[1:])


def test_an_optimizer_that_moves_no_version(libtorch_trainer, tmp_path):
    """The C++ SGD: its steps are seen by the values, so the last one, after which nothing is looked at, is not."""
    rank = libtorch_run(libtorch_trainer, tmp_path, "--optimizer", "sgd").rank()
    assert (rank["steps"], rank["step_source"]) == (STEPS - 1, "counted")


def test_libtorch_linked_instead_of_preloaded(base, tmp_path, libtorch_trainer):
    adapters = monitored.prepared_adapters()
    (base / "run").mkdir(mode=0o700)
    environment = monitored.clean_environment(
        FORESHOCK_DIR=str(base), FORESHOCK_RUN_ID="run", FORESHOCK_ADAPTERS=str(adapters), FORESHOCK_EVERY="1"
    )
    trainer = native.link_libtorch_trainer(tmp_path, *native.LINKED)
    subprocess.run([trainer, "--steps", "8"], env=environment, check=True, capture_output=True)
    (segment,) = segments(base / "run")
    assert_calls_conserved(segment.attention())
    assert segment.attention()["forward"]["calls"] == 8 * LAYERS
    assert [step["step"] for step in segment.steps()] == list(range(1, 9))


def test_doctor_knows_the_libtorch_of_a_program(libtorch_trainer, foreshock):
    told = foreshock("doctor", "--preload", "--", "env", "A=1", libtorch_trainer)
    assert told.returncode == 0, told.stdout
    line = f"{libtorch_trainer} is linked with LibTorch, {native.libtorch()}/lib/libtorch_cpu.so; libforeshock.so is"
    assert line in unwrapped(told.stdout)
    assert "adapter built" in unwrapped(told.stdout)


def test_a_libtorch_program_without_the_library_is_told_what_to_do(libtorch_trainer, tmp_path, foreshock):
    """`run` does not preload by itself: it says so, and the program runs as if alone."""
    what = f"{libtorch_trainer} is linked with LibTorch, but not with libforeshock.so: give --preload, or link it"
    told = foreshock("doctor", "--", libtorch_trainer)
    assert told.returncode == 1
    assert what in unwrapped(told.stdout)
    run = run_monitored([libtorch_trainer, "--steps", "2"])
    assert (run.returncode, run.stdout) == (0, run_plain([libtorch_trainer, "--steps", "2"]).stdout)
    assert f"foreshock: not monitoring: {what}" in run.stderr
    assert run.summary is None
    linked = native.link_libtorch_trainer(tmp_path, *native.LINKED)
    assert "and with libforeshock.so" in unwrapped(foreshock("doctor", "--", str(linked)).stdout)


def test_a_libtorch_that_is_not_there(libtorch_trainer, tmp_path, foreshock):
    """The program would not even start; `run` says so before it tries."""
    trainer = tmp_path / "moved"
    trainer.write_bytes(pathlib.Path(libtorch_trainer).read_bytes().replace(
        str(native.libtorch() / "lib").encode(), b"/" * len(str(native.libtorch() / "lib"))))  # fmt: skip
    trainer.chmod(0o700)
    told = foreshock("doctor", "--", str(trainer))
    assert told.returncode == 1
    assert "the dynamic linker finds no libtorch_cpu.so" in unwrapped(told.stdout)


def test_doctor_tells_of_other_programs(c_trainer, tmp_path, foreshock):
    told = foreshock("doctor", "--", c_trainer)
    assert f"{c_trainer} is not linked with LibTorch: foreshock sees Python that it starts, and calls" in unwrapped(
        told.stdout
    )
    static = str(native.build_c_trainer(tmp_path, "-static"))
    told = foreshock("doctor", "--", static)
    assert told.returncode == 1
    assert f"{static} is linked statically, so libforeshock.so cannot be loaded" in unwrapped(told.stdout)


def test_doctor_tells_what_keeps_the_helper_out(foreshock):
    told = foreshock("doctor", "--", monitored.PYTHON, "-I", "train.py")
    assert told.returncode == 1
    assert "python -I (isolated mode) ignores PYTHONPATH" in unwrapped(told.stdout)
    assert "else nothing of the training is seen" in unwrapped(told.stdout)


def test_c_trainer(c_trainer, tmp_path):
    run = under_run(tmp_path, [c_trainer, "200"], [])
    rank = run.rank()
    assert {name: of["calls"] for name, of in rank["attention"].items()} == {"forward": 400, "backward": 400}
    assert (rank["steps"], rank["step_source"]) == (200, "reported")
    samples = run.of("sample")
    assert {sample["op"] for sample in samples} == {"c_attention", "c_attention_backward"}
    for sample in samples:
        layer = (0, 1, 1, 0)[sample["call"] % 4]
        assert (sample["layer_source"], sample["layer"]) == ("annotation", f"{layer:03d}"), sample
        assert sample["relative_error_max"] < 1e-5  # plain fp32 loops: rounding, not a wrong slice
    losses = [line["loss"] for line in run.of("step")]
    assert sum(losses[-20:]) < sum(losses[:20])
