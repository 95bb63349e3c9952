"""The layering check finds what it is there to find, and the repository keeps its own rules about text."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from check_includes import wrong_edges  # noqa: E402

pytestmark = pytest.mark.quick


def test_the_tree_is_layered():
    assert wrong_edges(ROOT) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("segment/reader.h", '#include "agent/rank.h"'),
        ("kernels/sums.cpp", '#include "shadow/slice.h"'),
        ("libmonitor/monitor.cpp", "#include <exporters/metrics.h>"),
        ("exporters/metrics.cpp", '  #  include "shadow/slice.h"'),
        ("integrations/torch/adapter.cpp", '#include "libmonitor/options.h"'),
        ("libmonitor/include/foreshock/hook.h", '#include "segment/layout.h"'),
        ("agent/agent.cpp", '#include "cli/terminal.h"'),
    ],
)
def test_wrong_edges_are_found(tmp_path, path, line):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(line + "\n")
    assert len(wrong_edges(tmp_path)) == 1


def tracked_texts():
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, names):
        path = ROOT / name
        if not path.is_file() or path == pathlib.Path(__file__) or "corpus" in path.parts:
            continue
        try:
            yield name, path.read_text()
        except UnicodeDecodeError:
            continue


# Paths of somebody's machine, and flags under which NaN compares equal to anything.
FORBIDDEN = {
    "machine path": re.compile(r"(?<![\w.$/])/(work|root|home|Users)/\w|/tmp/(venv|build)"),
    "fast-math": re.compile(r"-f(fast-math|inite-math-only|associative-math|unsafe-math)|-Ofast|use_fast_math"),
}


@pytest.mark.parametrize("rule", FORBIDDEN)
def test_text_of_the_repository(rule):
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if FORBIDDEN[rule].search(line)
    ]
    assert found == []
