"""Fixtures of the fault matrix, and its table: one line per fault at the end of the tests."""

import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable

import fault_scene
import pytest
from fault_scene import Outcome, Scene
from monitored import ROOT

TABLE = "fault matrix: fault, result, extra delay at exit (exits), files left, what is said"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The C programs of this folder, compiled: {name: path}."""
    folder = tmp_path_factory.mktemp("faults")
    support, here = ROOT / "tests" / "support", ROOT / "tests" / "faults"
    flags = ["-std=c99", "-pedantic", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'libmonitor' / 'include'}"]
    compiler = shutil.which("gcc") or shutil.which("cc") or "clang"
    shim = ["-shared", "-fPIC"]
    more = {"fault_trainer": [str(support / "hand_attention.c")], "clock_shim": shim, "hanging_disk": shim}
    built = {}
    for source in sorted(here.glob("*.c")):
        built[source.stem] = str(folder / source.stem)
        command = [compiler, *flags, f"-I{support}", str(source), *more.get(source.stem, [])]
        subprocess.run([*command, "-o", built[source.stem], "-lm", "-ldl", "-pthread"], check=True)
    return built


@pytest.fixture
def scene(programs, base, tmp_path) -> Scene:
    return Scene(programs, base, tmp_path)


@pytest.fixture
def mounted(tmp_path):
    """mounted(options): a tmpfs of its own, mode 0700, with these mount options."""
    places = []

    def mount(options: str) -> pathlib.Path:
        if os.geteuid() != 0:
            pytest.skip("mounting a tmpfs of its own needs root")
        place = tmp_path / f"mounted{len(places)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"{options},mode=700", "none", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip("a tmpfs cannot be mounted here: " + done.stderr.strip())
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", str(place)], check=False)


@pytest.fixture
def told(show_line: Callable[[str, str], None]) -> Callable[..., None]:
    """told(fault, plain, watched, says): checks the end of a fault, and adds its line to the table.

    `says`: pattern of the one line that tells what is off, or patterns of several lines; None: nothing is.
    """

    def check(
        fault: str,
        scene: Scene,
        plain: Outcome,
        watched: Outcome,
        says: str | tuple[str, ...] | None = None,
        again: Callable | None = None,
    ) -> None:
        fault_scene.assert_same_result(plain, watched)
        before, after = list(plain.delays), list(watched.delays)
        for _ in range(2):  # a busy machine: more exits of each kind tell more, no other bound
            if not before or again is None or fault_scene.extra_delay(before, after)[0] < fault_scene.EXTRA_DELAY_US:
                break
            for outcome, delays in zip(again(), (before, after), strict=True):
                delays += outcome.delays
        delay = ""
        if before:
            extra, noise = fault_scene.extra_delay(before, after)
            assert extra < fault_scene.EXTRA_DELAY_US + noise, (before, after)
            delay = f"{extra / 1e3:+.2f} ms ({len(after)})"
        assert scene.left_files() == []
        expected = [says] if isinstance(says, str) else list(says or ())
        assert len(watched.said) == len(expected), watched.errors
        for line, pattern in zip(watched.said, expected, strict=True):
            assert pattern in line
        text = watched.said[0].removeprefix("foreshock: ") if watched.said else "-"
        show_line(TABLE, f"{fault:46}{'same':9}{delay:>18}  {'none':6}{text[:100]}")

    return check
