"""--count-kernels: attention kernels counted by CUPTI in a few steps, by a stand-in of it."""

import pathlib
import subprocess

import monitored
import native
import pytest
from monitored import EVERYTHING, run_monitored, unwrapped

SUPPORT = monitored.ROOT / "tests" / "support"
STEPS, COUNTED, WARM_UP = 20, 4, 10
COUNT = ("--count-kernels", str(COUNTED))


def compile_c(*arguments: str) -> None:
    subprocess.run([native.c_compiler(), "-std=gnu99", "-O1", "-Wall", "-Werror", *arguments], check=True)


def build_library(folder: pathlib.Path, *flags: str) -> pathlib.Path:
    library = folder / "libcupti.so.12"
    source = str(SUPPORT / "cupti" / "stand_in.c")
    compile_c("-shared", "-fPIC", *flags, source, f"-Wl,-soname,{library.name}", "-o", str(library))
    return library


def build_trainer(folder: pathlib.Path, *flags: str) -> str:
    library, program = build_library(folder, *flags), folder / "trainer"
    sources = [str(SUPPORT / "cupti" / "trainer.c"), str(SUPPORT / "hand_attention.c")]
    include = [f"-I{SUPPORT}", f"-I{native.INCLUDE}"]
    compile_c(*include, *sources, str(library), f"-Wl,-rpath,{folder}", "-lm", "-o", str(program))
    return str(program)


@pytest.fixture(scope="module", params=[(), ("-DNEWER",)], ids=["cuda 12", "cuda 13"])
def trainer(request, tmp_path_factory) -> tuple[str, bool]:
    return build_trainer(tmp_path_factory.mktemp("cupti"), *request.param), bool(request.param)


def run(program: str, *options: str, **environment: str) -> tuple[str, dict, monitored.Run]:
    done = run_monitored([program, str(STEPS)], "--preload", *EVERYTHING, *options, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.rank()["attention_coverage"], done


def test_kernels_are_counted_in_the_steps_asked_for(trainer):
    program, _ = trainer
    told, coverage, done = run(program, *COUNT)
    held = "0" * (WARM_UP + 1) + "1" * COUNTED
    assert told == f"{held.ljust(STEPS, '0')} 1 1 0"
    kernels = {"forward": 3 * COUNTED, "backward": 3 * COUNTED}
    calls = {"forward": 2 * COUNTED, "backward": 2 * COUNTED}
    assert coverage["kernels"] == {
        "state": "done", "holder": "", "steps": COUNTED, "launched": kernels, "calls": calls, "in_graphs": 0,
    }  # fmt: skip
    assert (coverage["ratio"], coverage["source"]) == (pytest.approx(2 / 3), "kernels")
    assert f"{6 * COUNTED} attention kernels in {COUNTED} steps, {4 * COUNTED} calls seen" in unwrapped(done.stderr)


def test_without_the_option_nobody_touches_cupti(trainer):
    told, coverage, _ = run(trainer[0])
    assert told == f"{'0' * STEPS} 0 0 0"
    assert "kernels" not in coverage


def test_it_gives_way_to_another_tool_and_names_it(trainer):
    program, is_newer = trainer
    told, coverage, done = run(program, *COUNT, STAND_IN="taken")
    assert told == f"{'0' * STEPS} 0 0 0"
    holder = "CUPTI for Nsight Systems" if is_newer else ""
    assert (coverage["kernels"]["state"], coverage["kernels"]["holder"]) == ("taken", holder)
    assert (coverage["ratio"], coverage["source"]) == (None, "none")
    assert "another tool uses CUPTI" in unwrapped(done.stderr)


def test_what_it_cannot_enable_it_gives_back(trainer):
    told, coverage, _ = run(trainer[0], *COUNT, STAND_IN="deaf")
    assert told == f"{'0' * STEPS} 1 1 0"
    assert coverage["kernels"]["state"] == "refused"


def test_a_process_without_cupti_says_so(tmp_path):
    program = str(native.build_c_trainer(tmp_path))
    done = run_monitored([program, "200"], "--preload", *EVERYTHING, *COUNT)
    assert done.rank()["attention_coverage"]["kernels"]["state"] == "no_library", done.stderr


def test_not_while_torch_profiler_runs(tmp_path):
    """It waits until the profiler has ended, and ends when one begins."""
    library = build_library(tmp_path)
    script = tmp_path / "profiled.py"
    script.write_text(f"""
import ctypes, json, torch
from torch import nn
cupti = ctypes.CDLL({str(library)!r})
model = nn.Linear(8, 8); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def steps(count):
    held = []
    for _ in range(count):
        q = model(torch.randn(1, 2, 8, 8))
        nn.functional.scaled_dot_product_attention(q, q, q).sum().backward(); optimizer.step(); optimizer.zero_grad()
        held.append(cupti.stand_in_is_held())
    return held
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    inside = steps(16)
after = steps(2)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    again = steps(2)
print(json.dumps([inside, after, again, cupti.stand_in_subscriptions(), cupti.stand_in_ends(),
                  cupti.stand_in_is_wrong()]))
""")
    done = run_monitored([monitored.PYTHON, str(script)], *EVERYTHING, "--count-kernels", "9")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[" + ", ".join("0" * 16) + "], [1, 1], [0, 0], 1, 1, 0]"
    kernels = done.rank()["attention_coverage"]["kernels"]
    assert (kernels["state"], kernels["steps"]) == ("done", 2)
