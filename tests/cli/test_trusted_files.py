"""What runs in a training comes from files that only this user and root can replace; else one line says why not."""

import os
import pathlib
import shutil
import stat
import subprocess
import sys

import monitored
import pytest
from tiers import keep

sys.path.insert(0, str(monitored.ROOT / "integrations" / "torch" / "python" / "foreshock_torch"))
import trust  # noqa: E402

pytestmark = pytest.mark.quick

STRANGER = 12345


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a file to another user needs root")


def give_away(path) -> None:
    needs_root()
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


@pytest.fixture(scope="module")
def adapters():
    return monitored.prepared_adapters()


@pytest.fixture
def cache(tmp_path, adapters):
    """A cache of ours with the adapter for this build and this torch."""
    folder = tmp_path / "place" / "cache"
    shutil.copytree(adapters, folder / adapters.name)
    for path in (folder.parent, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def said(environment, *, foreshock=monitored.FORESHOCK, **more) -> str:
    """What `foreshock run` says of a Python that has torch and does not import it."""
    done = subprocess.run(
        [foreshock, "run", "--", monitored.PYTHON, "-c", "print('done')"],
        env=environment | more, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    lines = [line for line in done.stderr.splitlines() if "not monitoring" in line]
    assert len(lines) <= 1
    return lines[0].removeprefix("foreshock: not monitoring: ") if lines else ""


def adapter_of(cache):
    (adapter,) = cache.rglob("adapter.so")
    return adapter


def test_a_cache_of_ours_is_used(environment, cache):
    assert said(environment, FORESHOCK_CACHE=str(cache)) == ""


def open_place(cache):
    cache.parent.chmod(0o777)
    return f"{cache.parent} is writable by other users"


def open_cache(cache):
    cache.chmod(0o777)
    return f"{cache} is writable by other users"


def cache_of_another(cache):
    give_away(cache)
    return f"{cache} belongs to user {STRANGER}"


def cache_of_another_in_a_sticky_folder(cache):
    cache.parent.chmod(0o1777)
    return cache_of_another(cache)


def linked_by_another(cache):
    """The cache is ours, the link to it is not."""
    real = cache.rename(cache.parent.parent / "real")
    cache.symlink_to(real)
    give_away(cache)
    return f"{cache} belongs to user {STRANGER}"


def link_to_the_cache_of_another(cache):
    real = cache.rename(cache.parent.parent / "real")
    cache.symlink_to(real)
    give_away(real)
    return f"{real} belongs to user {STRANGER}"


def open_folder_of_the_adapter(cache):
    adapter_of(cache).parent.chmod(0o777)
    return f"{adapter_of(cache).parent} is writable by other users"


def open_adapter(cache):
    adapter_of(cache).chmod(0o666)
    return f"{adapter_of(cache)} is writable by other users"


def adapter_of_another(cache):
    give_away(adapter_of(cache))
    return f"{adapter_of(cache)} belongs to user {STRANGER}"


@pytest.mark.parametrize(
    "spoil",
    [
        open_place,
        open_cache,
        cache_of_another,
        cache_of_another_in_a_sticky_folder,
        linked_by_another,
        link_to_the_cache_of_another,
        open_folder_of_the_adapter,
        open_adapter,
        adapter_of_another,
    ],
)
def test_a_cache_that_others_could_change_is_refused(environment, cache, spoil):
    expected = spoil(cache)
    line = said(environment, FORESHOCK_CACHE=str(cache))
    assert line.startswith(expected + ", who could put code into the training; "), line
    assert any(remedy in line for remedy in ("chmod go-w", "set FORESHOCK_CACHE", "remove it"))


def installation_in(folder):
    """A copy of foreshock that may be spoiled."""
    root = folder / "installation"
    for name in ("bin", "lib", "include", "share"):
        shutil.copytree(monitored.BUILD / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.mark.parametrize("umask", keep([0o000, 0o002], 0o000))
def test_others_cannot_write_bytecode_of_the_helper(environment, cache, tmp_path, umask):
    """Python creates the folder for bytecode with the umask of the training. The next training would read it. Where
    Python must not write bytecode, the builder of the adapter does."""
    foreshock = installation_in(tmp_path) / "bin" / "foreshock"
    environment = environment | {"FORESHOCK_CACHE": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        foreshock,
        "run",
        "--",
        monitored.PYTHON,
        "-c",
        "import foreshock_torch; print(foreshock_torch.__file__)",
    ]
    done = subprocess.run(command, env=environment, umask=umask, capture_output=True, text=True, timeout=60, check=True)
    folder = pathlib.Path(done.stdout.strip()).parent / "__pycache__"
    assert folder.is_relative_to(tmp_path)
    assert len(list(folder.glob("*.pyc"))) == len(list(folder.parent.glob("*.py")))
    assert not [path for path in folder.iterdir() if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert said(environment, foreshock=foreshock) == ""


PARTS = ["lib", "lib/libforeshock.so", "share/foreshock/torch/build_adapter.py", "bin/.."]
PARTS += ["share/foreshock/python/foreshock_torch/start.py"]


@pytest.mark.parametrize("part", keep(PARTS, "lib/libforeshock.so"))
@pytest.mark.parametrize("spoil", ["open", "given away"])
def test_an_installation_that_others_could_change_is_refused(environment, cache, tmp_path, part, spoil):
    root = installation_in(tmp_path)
    spoiled = root / part
    spoiled.chmod(0o777) if spoil == "open" else give_away(spoiled)
    line = said(environment, foreshock=root / "bin" / "foreshock", FORESHOCK_CACHE=str(cache))
    problem = "is writable by other users" if spoil == "open" else f"belongs to user {STRANGER}"
    assert line.startswith(f"{spoiled.resolve()} {problem}, who could put code into the training; "), line


# The trainer's own check, before it loads a library.


@pytest.mark.parametrize(
    ("spoil", "is_trusted"),
    [
        (None, True),
        (open_place, False),
        (open_cache, False),
        (cache_of_another_in_a_sticky_folder, False),
        (linked_by_another, False),
        (link_to_the_cache_of_another, False),
        (open_adapter, False),
        (adapter_of_another, False),
    ],
)
def test_the_trainer_checks_again(cache, spoil, is_trusted):
    adapter = str(adapter_of(cache))
    if spoil is not None:
        spoil(cache)
    assert trust.is_trusted(adapter) == is_trusted


def test_the_trainer_follows_links_as_the_kernel_does(tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "target").touch()
    (tmp_path / "open" / "middle").symlink_to("../target")
    (tmp_path / "first").symlink_to("open/middle")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    assert trust.is_trusted("first")
    assert trust.is_trusted("open/.././/first")
    assert trust.is_trusted("/")
    assert not trust.is_trusted("loop")
    assert not trust.is_trusted("missing")
    (tmp_path / "open").chmod(0o777)
    assert not trust.is_trusted("first"), "a link on the way may be replaced"
    (tmp_path / "open").chmod(0o1777)
    assert trust.is_trusted("first")


@pytest.mark.parametrize(
    ("users", "groups", "is_trusted"),
    [
        ("me:x:{user}:{group}::/:/bin/sh", "me:x:{group}:", True),
        ("me:x:{user}:{group}::/:/bin/sh", "me:x:{group}:me", True),
        ("me:x:{user}:{group}::/:/bin/sh", "me:x:{group}:me,friend", False),
        ("me:x:{user}:{group}::/:/bin/sh\nyou:x:1:{group}::/:/bin/sh", "me:x:{group}:", False),
        ("you:x:1:1::/:/bin/sh", "me:x:{group}:", False),
        ("me:x:{user}:{group}::/:/bin/sh", "you:x:1:", False),
    ],
)
def test_a_group_may_write_only_if_the_owner_is_its_only_member(tmp_path, monkeypatch, users, groups, is_trusted):
    """As tests/libmonitor/trusted_path_test.cpp, for the check of the trainer."""
    numbers = {"user": os.geteuid(), "group": os.getegid()}
    for name, text in (("USERS", users), ("GROUPS", groups)):
        (tmp_path / name).write_text(text.format(**numbers) + "\n")
        monkeypatch.setattr(trust, name, str(tmp_path / name))
    (tmp_path / "library.so").touch()
    (tmp_path / "library.so").chmod(0o664)
    assert trust.is_trusted(str(tmp_path / "library.so")) == is_trusted
    (tmp_path / "library.so").chmod(0o666)
    assert not trust.is_trusted(str(tmp_path / "library.so"))
