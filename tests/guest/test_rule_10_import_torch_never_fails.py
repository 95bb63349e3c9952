"""Rule 10: `import torch` never fails because of us. The helper is of the standard library alone, in a directory of its
own, and whatever is wrong with its parts, start.py catches everything."""

import ast
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import types

import monitored
import pytest

HELPERS = monitored.ROOT / "integrations" / "torch" / "python"
HELPER = HELPERS / "foreshock_torch" / "__init__.py"


def imported_names(path: pathlib.Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    return names


def test_the_standard_library_alone():
    own = {path.stem for path in HELPERS.iterdir()}
    for module in HELPERS.rglob("*.py"):
        assert imported_names(module) <= set(sys.stdlib_module_names) | {"__future__", "torch"} | own, module


PARTS = sorted(path.name for path in HELPER.parent.glob("*.py") if path != HELPER)


@pytest.mark.parametrize("damage", ["gone", "broken", "raises"])
@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_part_is_nobody_s_harm(tmp_path, part, damage):
    """As after half an upgrade: `import torch` works, and so do the doors."""
    copy = tmp_path / "python"
    shutil.copytree(HELPERS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    target = copy / "foreshock_torch" / part
    target.unlink()
    if damage != "gone":
        target.write_text("def (" if damage == "broken" else "raise ImportError('no')\n")
    (copy / "torch.py").write_text("")
    code = f"""
import sys; sys.path.insert(0, {str(copy)!r})
import torch, foreshock_torch
print(foreshock_torch.autoload(), foreshock_torch.report(step=1))
"""
    run = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, env={"FORESHOCK_DIR": str(tmp_path)}
    )
    assert (run.stdout, run.stderr) == ("None None\n", "")


def test_importing_the_helper_imports_next_to_nothing():
    """It is imported into every process that imports torch."""
    code = f"""
import sys
before = set(sys.modules)
sys.path.insert(0, {str(HELPERS)!r})
import foreshock_torch
print(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}))
"""
    seen = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = {"ctypes", "torch", "json", "subprocess", "threading", "socket", "logging", "weakref", "atexit", "gc"}
    assert "foreshock_torch" in ast.literal_eval(seen)
    assert not heavy & set(ast.literal_eval(seen))


def fresh_helper() -> types.ModuleType:
    name = "foreshock_torch_alone"
    for part in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[part]
    spec = importlib.util.spec_from_file_location(name, HELPER, submodule_search_locations=[str(HELPER.parent)])
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Hostile(types.ModuleType):
    """Fails at whatever is asked of it."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


@pytest.mark.parametrize("torch", [None, types.ModuleType("torch"), Hostile("torch")])
@pytest.mark.parametrize("base", [None, "", "/nonexistent", "\udcff"])
def test_the_door_never_raises(monkeypatch, torch, base):
    helper = fresh_helper()
    monkeypatch.setenv("FORESHOCK_ADAPTERS", "/nonexistent")
    if base is None:
        monkeypatch.delenv("FORESHOCK_DIR", raising=False)
    else:
        monkeypatch.setenv("FORESHOCK_DIR", base)
    if torch is None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "torch", torch)
    assert helper.autoload() is None
    assert helper.autoload() is None
    assert helper.report(step=1, loss=2.0) is None


def test_the_entry_point_names_what_is_there():
    """Metadata whose module is missing does break `import torch`."""
    (entry_points,) = HELPERS.glob("*.dist-info/entry_points.txt")
    module, _, function = entry_points.read_text().split("=")[-1].strip().partition(":")
    assert (HELPERS / module / "__init__.py").exists()
    assert callable(getattr(fresh_helper(), function))


@pytest.mark.parametrize(
    "environment",
    [
        {},  # a helper without anything
        {"FORESHOCK_DIR": "/nonexistent", "FORESHOCK_RUN_ID": "x"},
        {"FORESHOCK_DIR": "/nonexistent", "FORESHOCK_RUN_ID": "x", "LD_PRELOAD": str(monitored.LIBRARY)},
        {"FORESHOCK_DIR": "/nonexistent", "FORESHOCK_RUN_ID": "x" * 5000, "LD_PRELOAD": str(monitored.LIBRARY),
         "FORESHOCK_ADAPTERS": "y" * 5000, "FORESHOCK_EVERY": "-1", "FORESHOCK_MEMORY": "much", "RANK": "?"},
    ],
    ids=["helper_alone", "no_library", "no_adapters", "nonsense"],
)  # fmt: skip
def test_import_torch(environment):
    code = "import torch; print(torch.ones(2).sum().item(), '\\udcff' in '')"
    run = monitored.run_plain([monitored.PYTHON, "-c", code], PYTHONPATH=str(HELPERS), **environment)
    assert (run.returncode, run.stdout, run.stderr) == (0, "2.0 False\n", "")
