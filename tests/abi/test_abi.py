"""The border of the library: what it exports, what it needs, and C99 programs that call it."""

import itertools
import pathlib
import re
import shutil
import subprocess

import monitored
import pytest
from segment_file import assert_calls_conserved, segments

FOLDER = pathlib.Path(__file__).resolve().parent
HEADERS = FOLDER.parents[1] / "libmonitor" / "include"
HAND = str(FOLDER.parent / "support" / "hand_attention.c")
# Debian 11's, the oldest system that is promised.
NEWEST_GLIBC = (2, 31)


def tool(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_exported_names(library):
    """Those of hook.h; nothing of the C++ runtime, which would meet the trainer's own."""
    names = {line.split()[-1].partition("@")[0] for line in tool("nm", "-D", "--defined-only", library).splitlines()}
    declared = set(re.findall(r"\b(foreshock_\w+)\(", (HEADERS / "foreshock" / "hook.h").read_text()))
    assert names == declared | {"FORESHOCK_1"}


def test_needed_libraries(library):
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", tool("readelf", "-d", library)))
    assert needed <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def test_it_stays_when_it_is_closed(library):
    """A thread may be in a hook then, and exit() calls a handler of ours."""
    assert "NODELETE" in tool("readelf", "-d", library)


def test_undefined_names_are_libc_s(library):
    """No C++ runtime, no torch, no CUDA, no Python is hoped for either."""
    for line in tool("nm", "-D", "--undefined-only", library).splitlines():
        name = line.split()[-1]
        assert "@GLIBC_" in name or re.match(r"_ITM_|__gmon_start__|__cxa_finalize", name), line


def test_highest_glibc_version(library, capsys):
    wanted = re.findall(r"@GLIBC_(\d+)\.(\d+)", tool("nm", "-D", "--undefined-only", library))
    highest = max((int(major), int(minor)) for major, minor in wanted)
    with capsys.disabled():
        print(f"\nlibforeshock.so needs GLIBC_{highest[0]}.{highest[1]}")
    assert highest <= NEWEST_GLIBC


@pytest.mark.parametrize(
    ("header", "language"),
    [*itertools.product(["hook.h", "annotate.h"], ["c99", "c++20"]), ("libtorch.h", "c++17")],
)
def test_each_header_alone(header, language, tmp_path):
    compiler = shutil.which("gcc") or shutil.which("clang")
    source = tmp_path / ("alone.c" if language == "c99" else "alone.cpp")
    source.write_text(f"#include <foreshock/{header}>\n#include <foreshock/{header}>\n")
    flags = [f"-std={language}", "-pedantic", "-Wall", "-Wextra", "-Werror", "-Wstrict-prototypes"]
    if language != "c99":
        flags.remove("-Wstrict-prototypes")
    subprocess.run([compiler, *flags, f"-I{HEADERS}", "-fsyntax-only", str(source)], check=True)


def test_public_headers_include_nothing_but_the_standard_library():
    for header in HEADERS.rglob("*.h"):
        for included in re.findall(r"#include\s*[<\"](.*)[>\"]", header.read_text()):
            of_cxx = ("foreshock/annotate.h", "cstdio", "cstdlib", "string", "vector")  # libtorch.h is C++
            allowed = of_cxx if header.name == "libtorch.h" else ("stddef.h", "stdint.h", "foreshock/hook.h")
            assert included in allowed, header


@pytest.fixture(scope="module")
def annotated(compile_c) -> str:
    return compile_c("annotated", str(FOLDER / "annotated.c"), HAND)


@pytest.fixture
def run_directory(tmp_path_factory):
    import tempfile

    base = pathlib.Path(tempfile.mkdtemp(prefix="foreshock-abi-", dir="/dev/shm"))
    (base / "run").mkdir(mode=0o700)
    yield base
    shutil.rmtree(base)


def environment_for(base: pathlib.Path, library: pathlib.Path, **more: str) -> dict[str, str]:
    return monitored.clean_environment(
        LD_PRELOAD=str(library), FORESHOCK_DIR=str(base), FORESHOCK_RUN_ID="run", FORESHOCK_EVERY="1", **more
    )


def test_annotations_without_the_library_do_nothing(annotated):
    alone = monitored.run_plain([annotated, "5", "2"])
    assert alone.returncode == 0
    assert alone.stdout.splitlines()[-1] == "enabled 0"


def test_annotations_with_the_library_preloaded(annotated):
    alone = monitored.run_plain([annotated, "40", "3"])
    run = monitored.run_monitored([annotated, "40", "3"], "--preload", *monitored.EVERYTHING)
    assert run.returncode == 0
    assert run.stdout.splitlines()[-1] == "enabled 1"
    assert run.stdout.splitlines()[:-1] == alone.stdout.splitlines()[:-1]  # every loss, to the last digit
    monitored.assert_conserved(run.rank())
    assert {name: of["calls"] for name, of in run.rank()["attention"].items()} == {"forward": 120, "backward": 120}
    assert run.rank()["steps"] == 40
    assert run.rank()["step_source"] == "reported"
    samples = run.of("sample")
    assert {line["op"] for line in samples} == {"hand_forward", "hand_backward"}
    # Plain fp32 attention over its own noise floor: what the reference finds must be rounding, not a wrong slice.
    assert all(line["relative_error_max"] < 1e-5 for line in samples)


def test_linked_instead_of_preloaded(library, compile_c, run_directory):
    """The same program linked with the library (how a C++ trainer would have it)."""
    linking = ["-Wl,--no-as-needed", str(library), f"-Wl,-rpath,{library.parent}"]
    program = compile_c("linked", str(FOLDER / "annotated.c"), HAND, *linking)
    environment = environment_for(run_directory, library)
    del environment["LD_PRELOAD"]
    done = subprocess.run([program, "6", "2"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "enabled 1"
    (segment,) = segments(run_directory / "run")
    assert_calls_conserved(segment.attention())
    assert segment.attention()["forward"]["calls"] == 12


def test_structs_of_another_release_are_not_read(library, compile_c, run_directory):
    program = compile_c("older", str(FOLDER / "older.c"))
    environment = environment_for(run_directory, library, FORESHOCK_MAX_SLOWDOWN="100%")
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=True)
    assert "1" in done.stdout
    (segment,) = segments(run_directory / "run")
    assert_calls_conserved(segment.attention())
    assert segment.attention()["forward"]["sampled"] == 0
    assert segment.attention()["forward"]["skipped"]["unknown"] > 0
    assert [step["step"] for step in segment.steps()] == list(range(1, 11))
    # prepare_ns lies behind the end of the shorter struct; read, it would be centuries.
    assert segment.cost_ns() < 10**9


@pytest.mark.parametrize("mode", ["unsampled", "sampled"])
def test_hooks_call_the_system_for_our_files_only(mode, library, compile_c, run_directory):
    """Rule 2. Another system call after the set-up would end the program with SIGSYS (-31)."""
    if not pathlib.Path("/proc/sys/kernel/seccomp").exists():
        pytest.skip("this kernel has no seccomp filters")
    program = compile_c("quiet_" + mode, "-D_GNU_SOURCE", "-rdynamic", str(FOLDER / "quiet.c"), HAND)
    every = "1000" if mode == "unsampled" else "1"
    environment = environment_for(run_directory, library, FORESHOCK_MAX_SLOWDOWN="100%") | {"FORESHOCK_EVERY": every}
    done = subprocess.run([program, mode], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout)
    calls, steps = done.stdout.splitlines()
    wanted, allocations, clocks = map(int, re.findall(r"\d+", calls))
    assert allocations == 0
    assert steps == "steps: allocations 0"
    if mode == "unsampled":
        # Of the 3000 calls of each operation, the first 128 and then one in 128 read a coarse clock.
        assert wanted == 0
        assert 0 < clocks <= 2 * (128 + 3000 / 128 + 1)
    else:
        assert wanted > 0
    (segment,) = segments(run_directory / "run")
    assert_calls_conserved(segment.attention())
    assert segment.attention()["forward"]["sampled"] > 0 or mode == "unsampled"
