"""Attention inside CUDA graphs: counted as what was recorded times its launches. By a stand-in of the CUDA runtime that
has nothing but graphs, under the versions of its names."""

import pathlib
import subprocess

import monitored
import native
import pytest
from monitored import EVERYTHING, run_monitored, run_plain

SUPPORT = monitored.ROOT / "tests" / "support"
GRAPHS = SUPPORT / "cuda_graphs"
STEPS, LAUNCHES = 6, 4


def compile_c(*arguments: str) -> None:
    subprocess.run([native.c_compiler(), "-std=gnu99", "-O1", "-Wall", "-Werror", *arguments], check=True)


def build(folder: pathlib.Path, name: str, trainer: str = "trainer") -> str:
    """The trainer, with a runtime of that file name."""
    runtime, program = folder / name, folder / trainer
    script = f"-Wl,--version-script={GRAPHS / 'runtime.map'}"
    # As the real one: it does not meet its own functions through the dynamic linker.
    flags = ["-shared", "-fPIC", "-Wl,-Bsymbolic-functions"]
    compile_c(*flags, str(GRAPHS / "runtime.c"), script, f"-Wl,-soname,{runtime.name}", "-o", str(runtime))
    sources = [str(GRAPHS / f"{trainer}.c"), str(SUPPORT / "hand_attention.c")]
    include = [f"-I{SUPPORT}", f"-I{native.INCLUDE}"]
    compile_c(*include, *sources, str(runtime), f"-Wl,-rpath,{folder}", "-lm", "-pthread", "-o", str(program))
    return str(program)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory) -> str:
    return build(tmp_path_factory.mktemp("graphs"), "libcudart-d0da41ae.so.12")


@pytest.fixture(scope="module")
def run(trainer) -> monitored.Run:
    command = [trainer, str(STEPS), str(LAUNCHES)]
    plain, watched = run_plain(command), run_monitored(command, "--preload", *EVERYTHING)
    assert (plain.returncode, watched.returncode) == (0, 0), watched.stderr
    assert plain.stdout == watched.stdout
    assert {"0", "1", "400", "900", "901"} == set(plain.stdout.split())  # answers and errors of the runtime arrive
    return watched


def test_recorded_calls_times_launches(run):
    rank = run.rank()
    monitored.assert_conserved(rank)
    steps = STEPS - 1
    graphs = rank["attention_coverage"]["graphs"]
    assert graphs == {
        "launches": steps * (LAUNCHES + 2) + 1,
        "unknown_launches": 0,
        "recorded": {"forward": 3 + 1 + 1, "backward": 3},
        "calls": {"forward": steps * (LAUNCHES * 3 + 1) + 1, "backward": steps * LAUNCHES * 3},
    }
    # Warm-up and what was recorded are all that the hooks have seen; only the warm-up ran.
    assert {name: of["calls"] for name, of in rank["attention"].items()} == {"forward": 2 + 5, "backward": 2 + 3}
    ran = 4 + graphs["calls"]["forward"] + graphs["calls"]["backward"]
    assert rank["attention_coverage"]["source"] == "graphs"
    assert rank["attention_coverage"]["ratio"] == pytest.approx(4 / ran)


def test_the_summary_says_it(run):
    calls = run.rank()["attention_coverage"]["graphs"]["calls"]
    assert f"{calls['forward'] + calls['backward']} calls ran in" in run.stderr


@pytest.fixture(scope="module")
def handles(tmp_path_factory) -> str:
    return build(tmp_path_factory.mktemp("handles"), "libcudart.so.12", "handles")


def graphs_of(program: str, what: str) -> tuple[dict, list[str]]:
    """What is known of its graphs, after the run was shown to be the same under the monitor; and every answer."""
    plain, watched = run_plain([program, what]), run_monitored([program, what], "--preload", *EVERYTHING)
    assert (plain.returncode, watched.returncode) == (0, 0), watched.stderr
    assert plain.stdout == watched.stdout
    monitored.assert_conserved(watched.rank())
    return watched.rank()["attention_coverage"]["graphs"], plain.stdout.split()


# What: launches that are known, unknown ones, pairs of calls that were recorded, and that ran
HANDLES = {
    "destroyed": (4, 2, 3 + 1 + 2, 3 + 3 + 1 + 2),
    "updated": (3, 0, 1 + 4, 1 + 4 + 4),
    "condition": (1, 1, 2 + 2 + 1, 2),
    "threads": (2, 0, 2 + 3, 2 + 3),
    "per_thread": (2, 0, 2 + 1, 2 + 3),
}


@pytest.mark.parametrize("what", HANDLES)
def test_handles_that_are_used_again_and_graphs_that_change(handles, what):
    launches, unknown, recorded, ran = HANDLES[what]
    graphs, answers = graphs_of(handles, what)
    assert graphs == {
        "launches": launches,
        "unknown_launches": unknown,
        "recorded": {"forward": recorded, "backward": recorded},
        "calls": {"forward": ran, "backward": ran},
    }
    refused = {"updated": {"910"}, "threads": {"908"}, "per_thread": {"903"}}
    assert set(answers) == {"0"} | refused.get(what, set())


def test_a_recording_whose_end_is_not_seen_does_not_keep_others_unknown(handles):
    graphs, _ = graphs_of(handles, "lost")
    steps = 20 - 1
    assert graphs["launches"] + graphs["unknown_launches"] == steps
    assert 0 < graphs["launches"] == graphs["calls"]["forward"]
    assert graphs["unknown_launches"] >= 8  # kMostRecordingSteps: until then it might have been recording


def test_switched_off_it_only_passes_on(trainer):
    command = [trainer, "3", "2"]
    plain = run_plain(command)
    alone = run_plain(command, LD_PRELOAD=str(monitored.LIBRARY), FORESHOCK="0")
    assert (plain.returncode, plain.stdout) == (alone.returncode, alone.stdout)


def test_a_runtime_of_another_file_name_is_met(tmp_path):
    """The dynamic linker goes by the version of its names, and so do we."""
    program = build(tmp_path, "libgpurt.so.1")
    plain = run_plain([program, "3", "2"])
    alone = run_plain([program, "3", "2"], LD_PRELOAD=str(monitored.LIBRARY))
    assert (plain.returncode, plain.stdout) == (alone.returncode, alone.stdout)
    watched = run_monitored([program, "3", "2"], "--preload", *EVERYTHING)
    assert watched.rank()["attention_coverage"]["graphs"]["unknown_launches"] == 0


def test_another_tool_behind_us_is_met(trainer, tmp_path):
    """Whoever else stands before the runtime is called as without us."""
    tool = tmp_path / "tool.so"
    (tmp_path / "tool.c").write_text("int cudaGraphLaunch(void* executable, void* stream) { return 77; }\n")
    compile_c("-shared", "-fPIC", str(tmp_path / "tool.c"), "-o", str(tool))
    alone = run_plain([trainer, "3", "2"], LD_PRELOAD=str(tool))
    behind = run_plain([trainer, "3", "2"], LD_PRELOAD=f"{monitored.LIBRARY}:{tool}")
    assert "77" in alone.stdout.split()
    assert alone.stdout == behind.stdout


def test_a_program_without_cuda_does_not_find_it(tmp_path):
    """The names are met only by who is linked with the runtime's own versions of them."""
    program = str(tmp_path / "probe")
    compile_c(str(GRAPHS / "probe.c"), "-ldl", "-o", program)
    for environment in ({}, {"LD_PRELOAD": str(monitored.LIBRARY)}):
        assert run_plain([program], **environment).stdout == "0 0 0 0 "
