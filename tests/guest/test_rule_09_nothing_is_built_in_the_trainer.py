"""Rule 9: adapters are built and tested by `run` and `doctor`; a trainer loads a stamped file or is off. Whatever is
missing for that, the training ends with its own result and one line says what is off."""

import pathlib
import subprocess
import sys
import textwrap

import monitored
import pytest
from tiers import keep

TRAINING = textwrap.dedent("""
    import torch
    torch.manual_seed(0)
    q = torch.nn.Parameter(torch.randn(1, 2, 16, 8))
    optimizer = torch.optim.SGD([q], lr=0.1)
    for _ in range(4):
        loss = torch.nn.functional.scaled_dot_product_attention(q, q, q).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item())
""")

# A torch that only has a version, and code that does not ask it for more.
FAKE_TRAINING = "import torch; print('trained with', torch.__version__)"


@pytest.fixture
def fake_torch(tmp_path):
    """fake_torch(version): a directory for PYTHONPATH."""

    def make(version: str) -> str:
        package = tmp_path / "fake" / "torch"
        (package / "lib").mkdir(parents=True)
        (package / "__init__.py").write_text("from .version import __version__\n")
        (package / "version.py").write_text(f"__version__ = {version!r}\ngit_version = {'0' * 40!r}\n")
        return str(package.parent)

    return make


def said(run: monitored.Run) -> list[str]:
    """Our lines but the two that are said of any monitored run."""
    lines = [line for line in run.stderr.splitlines() if line.startswith("foreshock: ")]
    return [line for line in lines if "page at" not in line and "preparing" not in line]


@pytest.mark.parametrize("version", ["2.99.0", "1.13.1+cu117", "nonsense"])
def test_unsupported_torch(fake_torch, tmp_path, version):
    more = {"PYTHONPATH": fake_torch(version), "FORESHOCK_CACHE": str(tmp_path / "cache")}
    run = monitored.run_monitored([monitored.PYTHON, "-c", FAKE_TRAINING], **more)
    assert (run.returncode, run.stdout) == (0, f"trained with {version}\n")
    assert len(said(run)) == 1, run.stderr
    assert said(run)[0].startswith(f"foreshock: not monitoring: torch {version} is not supported")
    assert not list((tmp_path / "cache").rglob("adapter.so"))


@pytest.mark.long
def test_no_torch(tmp_path):
    run = monitored.run_monitored([sys.executable, "-S", "-c", "print('done')"], FORESHOCK_CACHE=str(tmp_path))
    assert (run.returncode, run.stdout) == (0, "done\n")
    # The interpreter may have torch where -S does not look; then there is no segment. One line either way.
    assert len(said(run)) == 1, run.stderr


def test_no_compiler(tmp_path):
    """An empty cache and nothing to fill it with."""
    run = monitored.run_monitored(
        [monitored.PYTHON, "-c", TRAINING], PATH=str(tmp_path), CXX="", FORESHOCK_CACHE=str(tmp_path / "cache")
    )
    alone = monitored.run_plain([monitored.PYTHON, "-c", TRAINING])
    assert (run.returncode, run.stdout) == (0, alone.stdout)
    assert len(said(run)) == 1, run.stderr
    assert "not monitoring: no C++ compiler found; install g++" in said(run)[0]


def test_no_place_for_a_cache(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    run = monitored.run_monitored([monitored.PYTHON, "-c", "print('done')"], FORESHOCK_CACHE=str(blocked / "cache"))
    assert (run.returncode, run.stdout) == (0, "done\n")
    assert len(said(run)) == 1, run.stderr
    assert "not monitoring: " in said(run)[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    keep(
        [
            (None, "adapter_missing"),
            (b"not a library", "adapter_not_loadable"),
            ("libc", "adapter_failed"),
            ("open", "adapter_untrusted"),
        ],
        (None, "adapter_missing"),
        ("open", "adapter_untrusted"),
        several=True,
    ),
)
def test_a_trainer_without_its_adapter_is_off(without_agent, base, tmp_path, content, reason):
    """A trainer that nobody has prepared (another interpreter than `run` had found): it builds nothing and starts
    nothing, whatever lies in the cache."""
    code = "import torch; print(f'torch-{torch.__version__}-{torch.version.git_version[:12]}')"
    place = tmp_path / monitored.run_plain([monitored.PYTHON, "-c", code]).stdout.strip()
    if content is not None:
        place.mkdir()
        library = place / "adapter.so"
        if content == "libc":
            library.symlink_to(next(pathlib.Path("/lib").glob("*-linux-gnu/libm.so.6")))
        elif content == "open":
            library.write_bytes(b"replaced by another user")
            place.chmod(0o777)
        else:
            library.write_bytes(content)
    trace = tmp_path / "trace"
    command = ["strace", "-f", "--seccomp-bpf", "-e", "trace=execve,clone,clone3,fork,vfork", "-o", str(trace)]
    if subprocess.run(["which", "strace"], capture_output=True, check=False).returncode != 0:
        command = []
    done = subprocess.run(
        [*command, monitored.PYTHON, "-c", TRAINING],
        env=without_agent | {"FORESHOCK_ADAPTERS": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    alone = monitored.run_plain([monitored.PYTHON, "-c", TRAINING])
    assert (done.returncode, done.stdout) == (0, alone.stdout), done.stderr
    assert [file.name.split(".", 2)[2] for file in base.glob("alone/*")] == [reason]
    if command:
        started = [line for line in trace.read_text().splitlines() if "execve(" in line]
        assert len(started) == 1, started


def test_a_command_whose_python_is_hidden_says_what_to_do(tmp_path):
    """The shell's child is another Python than the one `run` can see."""
    script = f'PATH=/usr/bin:/bin; exec {monitored.PYTHON} -c "$CODE"'
    run = monitored.run_monitored(
        ["sh", "-c", script], PATH="/usr/bin:/bin", CODE=TRAINING, FORESHOCK_CACHE=str(tmp_path / "cache")
    )
    assert run.returncode == 0
    assert len(said(run)) == 1, run.stderr
    assert "adapter_missing" in said(run)[0]
    assert "foreshock doctor" in said(run)[0]
