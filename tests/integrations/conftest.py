"""Builds the fake core and the adapter once, and runs pieces of training in processes of their own under them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from monitored import known_instructions, prepared_adapters
from torch_version import TORCH
from zygote import Zygote

ROOT = Path(__file__).resolve().parents[2]
INTEGRATION = ROOT / "integrations" / "torch"
INCLUDE = ROOT / "libmonitor" / "include"
BUILDER = INTEGRATION / "build_adapter.py"
sys.path.insert(0, str(INTEGRATION))
import build_adapter as builder  # noqa: E402

# What every piece can use: events() gives what the fake core was told since the last call.
PREAMBLE = """
import ctypes, json, os, sys
if "HOST_CUDA" in os.environ: host_cuda = ctypes.CDLL(os.environ["HOST_CUDA"])  # before torch looks for devices
import torch
import torch.nn.functional as F
torch.manual_seed(0)
torch.set_num_threads(1)
_fake = ctypes.CDLL(None)
_fake.fake_events.restype = ctypes.c_char_p
def events(kind=None):
    rows = [json.loads(line) for line in _fake.fake_events().decode().splitlines()]
    return [row for row in rows if kind is None or row["event"] == kind]
def sdpa(q, k, v, **more): return F.scaled_dot_product_attention(q, k, v, **more)
def qkv(b=2, h=4, n=16, d=8, dtype=torch.float32, grad=True):
    return [torch.randn(b, h, n, d, dtype=dtype).requires_grad_(grad) for _ in range(3)]
# Steps with a look at gradients are not quiet. Only the tests of looks have some.
def set_looks(first=(), interval=1 << 40):
    looks = sys.modules.get("foreshock_torch.looks")
    if looks is not None: looks.FIRST, looks.INTERVAL = first, interval
set_looks()
def count(rows, kind, passes=(0, 1)): return sum(r["event"] == kind and r.get("pass") in passes for r in rows)
"""


def build(cache: Path | None, library: Path, *more: str, python: str = sys.executable, env: dict | None = None) -> dict:
    command = [
        python,
        str(BUILDER),
        *([] if cache is None else ["--cache", str(cache)]),
        "--library",
        str(library),
        "--include",
        str(INCLUDE),
    ]
    done = subprocess.run([*command, *more], capture_output=True, text=True, env=env, timeout=900)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def build_adapter():
    """build_adapter(cache, library, *options, env=None): the builder's answer."""
    return build


@pytest.fixture(scope="session")
def fake_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("fake") / "libfakecore.so"
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "clang++"
    source = str(Path(__file__).with_name("fake_core.cpp"))
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, f"-I{INCLUDE}", source, "-o", str(target)], check=True)
    return target


@pytest.fixture(scope="session")
def adapters(fake_core: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of adapters that work with the fake core, kept between test runs. An adapter is not linked with a core,
    so that of `foreshock run` is taken; compiling another one takes 40 s."""
    cache, prebuilt = request.config.cache.mkdir("foreshock_adapters"), tmp_path_factory.mktemp("prebuilt")
    torch = builder.find_torch(None)
    (built,) = prepared_adapters().glob("torch-*")
    (prebuilt / builder.prebuilt_name(torch.version, torch.git, builder.cxx11_abi(torch.home))).symlink_to(built)
    answer = build(cache, fake_core, "--prebuilt", str(prebuilt))
    assert answer["state"] in ("ready", "prebuilt", "built"), answer
    return cache


@pytest.fixture(scope="session")
def host_cuda(request: pytest.FixtureRequest) -> str:
    """A CUDA device in memory of the host (tests/support/host_cuda.cpp), kept between test runs."""
    if TORCH < (2, 13):
        pytest.skip("the device is written for what torch 2.13 asks of one")
    torch = builder.find_torch(None)
    source = ROOT / "tests" / "support" / "host_cuda.cpp"
    key = hashlib.sha256(source.read_bytes() + torch.git.encode()).hexdigest()[:16]
    folder = request.config.cache.mkdir("foreshock_host_cuda") / key
    target = folder / "libtorch_cuda.so"  # as torch's own, whose part it plays
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:  # so that of several test processes only one compiles it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            unfinished = folder / f"{os.getpid()}.so"
            compiler = os.environ.get("CXX") or "g++"
            command = builder.compile_command(compiler, torch.home, INCLUDE, str(source), unfinished)
            guard = torch.home / "include" / "c10" / "core" / "impl" / "DeviceGuardImplInterface.h"
            command += ["-Wl,-soname,libtorch_cuda.so", f"-Wl,-rpath,{torch.home / 'lib'}"]
            command += ["-DHOST_CUDA_HANDLES"] if "getStreamNativeHandle" in guard.read_text() else []
            subprocess.run(command, check=True)
            unfinished.rename(target)
    return str(target)


# Read when torch is imported or before: a piece with one of these must begin in a process that has them.
READ_AT_IMPORT = ("FORESHOCK", "HOST_CUDA", "LD_", "PYTHON", "TORCH", "OMP_")


@pytest.fixture(scope="session")
def zygote(fake_core: Path, adapters: Path, tmp_path_factory: pytest.TempPathFactory):
    """zygote(monitored, environment): a process to fork from, under the fake core or without it, with this environment.
    One is kept for each kind that is asked for."""
    kept: dict[tuple, Zygote] = {}

    def get(monitored: bool, environment: dict[str, str]) -> Zygote:
        kind = (monitored, *sorted(environment.items()))
        if kind not in kept:
            env = {k: v for k, v in os.environ.items() if not k.startswith("FORESHOCK")} | known_instructions()
            env |= {"OMP_NUM_THREADS": "1"}
            if monitored:
                paths = [str(INTEGRATION / "python"), str(ROOT / "tests" / "support")]
                env |= {"LD_PRELOAD": str(fake_core), "PYTHONPATH": os.pathsep.join(paths)}
                env |= {"FORESHOCK_DIR": str(tmp_path_factory.mktemp("zygote")), "FORESHOCK_ADAPTERS": str(adapters)}
            before, torch, after = PREAMBLE.partition("import torch\n")
            begin = before + torch + (after if monitored else "")
            # Every optimizer imports this when it is made, which takes nearly as long as torch itself.
            kept[kind] = Zygote(begin + "import torch._dynamo\n", env | environment)
        return kept[kind]

    yield get
    for each in kept.values():
        each.close()


@pytest.fixture
def trainer(zygote, tmp_path: Path):
    """trainer(code, **environment) runs code after PREAMBLE under the fake core; gives what it prints last, as JSON."""

    def run(code: str, monitored: bool = True, **environment: str) -> object:
        at_import = {name: text for name, text in environment.items() if name.startswith(READ_AT_IMPORT)}
        later = {name: text for name, text in environment.items() if name not in at_import}
        later |= {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
        done = zygote(monitored, at_import).run(textwrap.dedent(code), later, tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None

    return run
