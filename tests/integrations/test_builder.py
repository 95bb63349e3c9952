"""States of the builder, and that `import torch` survives whatever it finds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INTEGRATION = ROOT / "integrations" / "torch"
INCLUDE = ROOT / "libmonitor" / "include"
BUILDER = INTEGRATION / "build_adapter.py"


def make_torch(folder: Path, version: str) -> dict[str, str]:
    """Environment of a Python that would import a torch of this version (which nobody must import)."""
    home = folder / "torch"
    home.mkdir()
    (home / "__init__.py").write_text("raise SystemExit('imported')\n")
    (home / "version.py").write_text(f"__version__ = '{version}'\ngit_version = '0123456789abcdef'\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_cached_is_ready_at_once(build_adapter, fake_core: Path, adapters: Path) -> None:
    answer = build_adapter(adapters, fake_core)
    assert answer["state"] == "ready"
    assert Path(answer["path"]).is_file()
    seconds = []
    for _ in range(5):
        begin = time.monotonic()
        build_adapter(adapters, fake_core)
        seconds.append(time.monotonic() - begin)
    # The aim is 0.15 s on an idle core; other tests may share this one, so the best of five with room.
    assert min(seconds) < 0.4


def test_a_changed_file_is_not_current(build_adapter, fake_core: Path, adapters: Path, tmp_path: Path) -> None:
    """The stamp holds the digest of what lies beside it; without a compiler the answer cannot be `built`."""
    name = Path(build_adapter(adapters, fake_core)["path"]).parent.name
    shutil.copytree(adapters / name, tmp_path / name)
    with (tmp_path / name / "adapter.so").open("ab") as adapter:
        adapter.write(b"\0")
    env = {**os.environ, "PATH": "", "CXX": ""}
    assert build_adapter(tmp_path, fake_core, env=env)["state"] == "no_compiler"


def test_no_torch(fake_core: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-S", str(BUILDER), "--cache", str(tmp_path), "--library", str(fake_core)]
    done = subprocess.run([*command, "--include", str(INCLUDE)], capture_output=True, text=True, env={"PATH": "/bin"})
    assert done.returncode == 0
    assert '"no_torch"' in done.stdout


def test_unsupported_and_failing(build_adapter, fake_core: Path, tmp_path: Path) -> None:
    answer = build_adapter(tmp_path, fake_core, env=make_torch(tmp_path, "2.99.1"))
    assert answer["state"] == "unsupported"
    assert "2.99.1" in answer["reason"]
    assert answer["torch"] == "2.99.1"
    hollow = tmp_path / "hollow"
    hollow.mkdir()
    env = make_torch(hollow, "2.13.0")  # a supported number, but no headers
    (hollow / "torch" / "lib").mkdir()
    (hollow / "torch" / "lib" / "libc10.so").write_bytes(b"")
    answer = build_adapter(tmp_path, fake_core, env=env)
    assert answer["state"] == "failed"
    assert "torch" in answer["reason"]
    assert "\n" not in answer["reason"]
    assert not list(tmp_path.glob("torch-2*"))


def test_misuse_exits_2() -> None:
    done = subprocess.run([sys.executable, str(BUILDER), "--cache"], capture_output=True, text=True)
    assert done.returncode == 2
    done = subprocess.run(
        [sys.executable, str(BUILDER), "--cache", "c", "--library", "none.so", "--include", "none"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "none.so does not exist" in done.stderr


def imports(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if not k.startswith("FORESHOCK")}
    env |= {"PYTHONPATH": str(INTEGRATION / "python"), "FORESHOCK_DIR": str(tmp_path)}
    script = "import torch, foreshock_torch.door; foreshock_torch.report(step=1); print(foreshock_torch.door.monitor)"
    command = [sys.executable, "-W", "error", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, env=env | environment)


def test_import_torch_never_fails(build_adapter, fake_core: Path, adapters: Path, tmp_path: Path) -> None:
    broken = tmp_path / f"torch-{Path(build_adapter(adapters, fake_core)['path']).parent.name.removeprefix('torch-')}"
    broken.mkdir()
    (broken / "adapter.so").write_bytes(b"not a library")
    hollow = tmp_path / "libhollow.so"  # says it is the core and has nothing else
    source = tmp_path / "hollow.c"
    source.write_text("unsigned foreshock_abi_version(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(hollow)], check=True)
    cases = [
        {},
        {"LD_PRELOAD": str(fake_core)},
        {"LD_PRELOAD": str(fake_core), "FORESHOCK_ADAPTERS": str(tmp_path)},
        {"LD_PRELOAD": str(hollow), "FORESHOCK_ADAPTERS": str(adapters)},
        {"LD_PRELOAD": str(fake_core), "FORESHOCK_ADAPTERS": str(adapters), "FORESHOCK": "0"},
        {"LD_PRELOAD": str(fake_core), "FORESHOCK_ADAPTERS": str(adapters), "FORESHOCK": "off"},
    ]
    for case in cases:
        done = imports(tmp_path, **case)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "None", ""), case
    works = imports(tmp_path, LD_PRELOAD=str(fake_core), FORESHOCK_ADAPTERS=str(adapters))
    assert "clock.Monitor" in works.stdout


def test_a_failing_helper_switches_itself_off_and_says_so(trainer) -> None:
    rows, weight = trainer("""
        import foreshock_torch.clock
        foreshock_torch.clock.Monitor.before_step = lambda self, optimizer: 1 / 0
        model = torch.nn.Linear(2, 2); opt = torch.optim.SGD(model.parameters(), lr=1.0)
        for _ in range(2):
            opt.zero_grad(); model(torch.ones(1, 2)).sum().backward(); opt.step()
        print(json.dumps([events(), model.bias.grad.tolist()]))
    """)
    assert [row["reason"] for row in rows if row["event"] == "off"] == ["helper_before_step_ZeroDivisionError"]
    assert weight == [1.0, 1.0]
