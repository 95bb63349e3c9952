"""However a program reaches the library, every call of it is counted: bound at once or late, through addresses, by
pointers of its own, weakly, linked and preloaded at once, opened in mid-run. One that cannot be reached runs on."""

import pathlib
import subprocess

import monitored
import native
import pytest
from segment_file import assert_calls_conserved, segments

pytestmark = pytest.mark.quick

SOURCE = str(pathlib.Path(__file__).resolve().parent / "linkage.c")
DIRECT, TABLE, WEAK, OPENED = ("-DWAY=1", "-DWAY=2", "-DWAY=3", "-DWAY=4")
STEPS, CALLS = 50, 60  # more calls than the 1024 after which the switch is looked at
PRELOAD = {"LD_PRELOAD": str(monitored.LIBRARY)}
AS_NEEDED = ["-Wl,--as-needed", *native.LINKED[1:]]

REACHED = {
    "bound_at_once": ([DIRECT, "-Wl,-z,now", *native.LINKED], {}),
    "bound_late": ([DIRECT, "-Wl,-z,lazy", *native.LINKED], {}),
    "no_plt": ([DIRECT, "-fno-plt", *native.LINKED], {}),
    "no_pie": ([DIRECT, "-fno-pie", "-no-pie", *native.LINKED], {}),
    "only_what_is_needed": ([DIRECT, *AS_NEEDED], {}),
    "addresses": ([TABLE, *native.LINKED], {}),
    "addresses_no_pie": ([TABLE, "-fno-pie", "-no-pie", *native.LINKED], {}),
    "weak_linked": ([WEAK, *native.LINKED], {}),
    "weak_preloaded": ([WEAK], PRELOAD),
    "weak_dropped_but_preloaded": ([WEAK, *AS_NEEDED], PRELOAD),
    "linked_and_preloaded": ([DIRECT, *native.LINKED], PRELOAD),
    "opened": ([OPENED, "-ldl"], {}),
    "opened_and_preloaded": ([OPENED, "-ldl"], PRELOAD),
}
NOT_REACHED = {
    "alone": ([WEAK], {}),
    "weak_dropped": ([WEAK, *AS_NEEDED], {}),
    "static": ([WEAK, "-static"], PRELOAD),
    "static_pie": ([WEAK, "-static-pie"], PRELOAD),
}


def run(base: pathlib.Path, compile_c, name: str, flags: list[str], environment: dict[str, str]) -> str:
    program = compile_c(name, SOURCE, *flags)
    (base / "run").mkdir(mode=0o700)
    environment = {"FORESHOCK_DIR": str(base), "FORESHOCK_RUN_ID": "run", "FORESHOCK_EVERY": "8"} | environment
    command = [program, str(STEPS), str(CALLS), str(monitored.LIBRARY)]
    done = subprocess.run(
        command, env=monitored.clean_environment(**environment), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", REACHED)
def test_every_call_is_counted(name, library, compile_c, base):
    assert run(base, compile_c, name, *REACHED[name]) == "enabled 1\n"
    (segment,) = segments(base / "run")
    assert_calls_conserved(segment.attention())
    assert segment.attention()["forward"]["calls"] == segment.all_calls() == STEPS * CALLS
    assert [step["step"] for step in segment.steps()] == list(range(1, STEPS + 1))


@pytest.mark.parametrize("name", NOT_REACHED)
def test_a_program_that_is_not_reached_runs(name, library, compile_c, base):
    assert run(base, compile_c, name, *NOT_REACHED[name]) == "enabled 0\n"
    assert list((base / "run").iterdir()) == []
