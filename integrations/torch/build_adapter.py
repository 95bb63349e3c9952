"""Builds, tests and caches the adapter for the torch of the Python that runs this file, or for a LibTorch.

    python build_adapter.py --cache DIR --library libforeshock.so --include DIR [--fallback DIR] [--torch DIR]
                            [--prebuilt DIR] [--force]

Prints one JSON line {"state", "torch", "path", "reason", "seconds"} and exits 0; wrong use exits 2. `reason` is one
line that says what to do. States:
    ready           the adapter was in the cache
    prebuilt        it came with foreshock for exactly this torch, and has passed the self-test now
    built           it was compiled, and has passed the self-test
    no_torch, unsupported, no_compiler, failed

The result is torch-<version>-<git>/adapter.so in one of the folders --cache and --fallback. It is made before a trainer
starts, which only loads it. Needs only the standard library. If the cache has the adapter, torch is not imported.

If the cache cannot be written (a read-only home), the fallback gets a symbolic link to a prebuilt adapter. The fallback
is on a tmpfs, which takes memory and may be mounted noexec, so that an adapter in it could not be loaded. So no adapter
is copied or compiled there.
"""

from __future__ import annotations

import argparse
import compileall
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

SOURCES = Path(__file__).resolve().parent
PREBUILT = SOURCES.parent / "adapters"  # the adapters that came with foreshock, in an installed package
HELPERS = (SOURCES / "python", SOURCES.parent / "python")  # the Python helper, in the source tree or installed
# Minor versions this adapter was tested with. The dispatcher's C++ interface changes between any two.
SUPPORTED = {f"2.{minor}" for minor in range(6, 16)}
FLAGS = ["-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-s"]
FLAGS += ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro,-z,now"]
FLAGS_OF = {"x86_64": ["-fcf-protection"]}  # more flags, by processor
COMPILERS = ["g++", "c++", "clang++"]
COMPILE_SECONDS, TEST_SECONDS, RETRY_SECONDS = 600, 240, 120  # limits; RETRY: to begin with another compiler


class BuildError(Exception):
    """The build ended in `state`: no_torch, unsupported, no_compiler or failed. `reason` says what to do."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state, self.reason = state, " ".join(reason.split())


class Torch(NamedTuple):
    home: Path  # has include/ and lib/
    version: str
    git: str  # hash of the commit


def find_torch(given: Path | None) -> Torch:
    """The torch at `given`, or the one that this Python would import. Does not import torch."""
    if given is not None:
        return Torch(given, *read_version(given))
    home = importable_torch()
    if home is None:
        raise BuildError("no_torch", f"{sys.executable} has no torch; use the Python of the training")
    return Torch(home, *read_version(home))


def importable_torch() -> Path | None:
    """The folder of the torch that this Python would import, or None."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def read_version(home: Path) -> tuple[str, str]:
    """(version, git hash) of a Python package (version.py) or of a LibTorch archive (build-version, build-hash)."""
    if (home / "build-version").is_file() and (home / "build-hash").is_file():
        return (home / "build-version").read_text().strip(), (home / "build-hash").read_text().strip()
    try:
        text = (home / "version.py").read_text()
    except OSError as error:
        raise BuildError("unsupported", f"torch at {home} has no version.py ({error.strerror})") from error
    values = dict(re.findall(r"^(__version__|git_version)\s*=\s*['\"]([^'\"]+)['\"]", text, re.M))
    if "__version__" not in values:
        raise BuildError("unsupported", f"cannot read the version of torch from {home / 'version.py'}")
    return values["__version__"], values.get("git_version", "unknown")


def require_supported(version: str) -> None:
    if ".".join(version.split(".")[:2]) not in SUPPORTED:
        known = ", ".join(sorted(SUPPORTED, key=lambda minor: int(minor.partition(".")[2])))
        raise BuildError("unsupported", f"torch {version} is not supported yet; attention is seen with torch {known}")


def compilers() -> list[str]:
    """The C++ compilers of this machine, in the order in which they are tried: CXX, then COMPILERS, since the
    compiler that CXX names (often for another purpose) cannot always link a shared library for this torch."""
    names = [name.split()[0] for name in (os.environ.get("CXX", ""), *COMPILERS) if name.strip()]
    return [*dict.fromkeys(filter(None, map(shutil.which, names)))]


def with_each_compiler(attempt: Callable[[str], None]) -> str:
    """Calls `attempt` with one compiler after the other until an attempt succeeds. Returns that compiler. If all fail,
    the error has the reasons of the first and the last attempt. A further attempt begins only within RETRY_SECONDS,
    since cli/torch.cpp, which runs this program, waits only 15 minutes."""
    begin, errors = time.monotonic(), []
    for compiler in compilers():
        if errors and time.monotonic() - begin > RETRY_SECONDS:
            break
        try:
            attempt(compiler)
            return compiler
        except BuildError as error:
            errors.append((compiler, error))
    if not errors:
        remedy = "install g++ (apt-get install g++) or set CXX: no adapter for this torch came with foreshock"
        raise BuildError("no_compiler", f"no C++ compiler found; {remedy}")
    (_, first), (compiler, last) = errors[0], errors[-1]
    raise first if last is first else BuildError("failed", f"{first.reason}; with {compiler}: {last.reason}")


def digest(paths: list[Path]) -> str:
    """SHA-256 of the names and contents of the files."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def source_digest(include: Path) -> str:
    """Digest of the adapter's sources. Does not depend on their folder: prebuilt adapters were built in another one."""
    ours = [*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"), *(include / "foreshock").glob("*.h")]
    return digest(sorted(ours, key=lambda path: path.name))


def is_current(place: Path, source_hash: str, identity: str) -> bool:
    """Whether stamp.json in the folder `place` matches `source_hash` (source_digest), the torch of `identity`
    (identity_of), and the adapter.so in `place`."""
    try:
        stamp = json.loads((place / "stamp.json").read_text())
        known = (stamp["sources"], stamp["adapter"], stamp.get("identity", ""))
        return known == (source_hash, digest([place / "adapter.so"]), identity)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def identity_of(home: Path, git: str) -> str:
    """Distinguishes two builds of torch with the same version and git hash; "" if the hash is a commit's, hence unique.

    The torch of Linux distributions has the git hash "Unknown" in every revision. Its builds differ in size and time of
    libtorch_cpu.so.
    """
    if re.fullmatch(r"[0-9a-f]{40}", git):
        return ""
    library = (home / "lib" / "libtorch_cpu.so").stat()
    return f"{library.st_size}-{library.st_mtime_ns}"


def cxx11_abi(home: Path) -> str:
    """The value of _GLIBCXX_USE_CXX11_ABI with which this torch was built, "0" or "1". Wheels of both kinds exist.

    Searches libc10.so for a function of torch that takes a std::string of the old ABI. The word __cxx11 does not prove
    the new ABI: wheels of the old ABI contain it too if they include parts of libstdc++ (2.6.0+cu124).
    """
    with (home / "lib" / "libc10.so").open("rb") as library:
        return "0" if b"torchCheckFailEPKcS2_jRKSs" in library.read() else "1"


def prebuilt_adapter(folder: Path, home: Path, version: str, git: str, source_hash: str) -> Path | None:
    """The adapter in `folder` that came with foreshock for this commit of torch, or None. CPU and CUDA wheels share one
    adapter, so its name has no local version ("+cu124")."""
    if identity_of(home, git):
        return None  # `git` is not the hash of a commit
    place = folder / prebuilt_name(version, git, cxx11_abi(home))
    return place / "adapter.so" if is_current(place, source_hash, "") else None


def prebuilt_name(version: str, git: str, abi: str) -> str:
    """The name of the folder with a prebuilt adapter. `abi`: see cxx11_abi()."""
    return f"torch-{version.partition('+')[0]}-{git[:12]}-abi{abi}"


def flags_for(machine: str) -> list[str]:
    return [*FLAGS, *FLAGS_OF.get(machine, [])]


def compile_command(
    compiler: str, home: Path, include: Path, source: str, target: Path, machine: str = platform.machine()
) -> list[str]:
    """The command that compiles `source`, a file of SOURCES, to a shared library, or to a program if `target` has no
    suffix. `home`: that of torch. `include`: the folder with foreshock/hook.h. `machine`: the processor for which
    `compiler` compiles."""
    flags = [flag for flag in flags_for(machine) if target.suffix or flag != "-shared"]
    # Macros of torch compile header paths into the adapter. Mapped paths make equal sources give equal adapters.
    includes = [f"-ffile-prefix-map={folder}={name}" for folder, name in ((home, "torch"), (SOURCES, "foreshock"))]
    includes += [f"-ffile-prefix-map={include}=include", "-I", str(include)]
    for path in (home / "include", home / "include" / "torch" / "csrc" / "api" / "include"):
        includes += ["-isystem", str(path)]
    libraries = [f"-L{home / 'lib'}", f"-Wl,-rpath-link,{home / 'lib'}", "-ltorch_cpu", "-lc10", "-ldl"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={cxx11_abi(home)}"
    return [compiler, *flags, abi, *includes, str(SOURCES / source), "-o", str(target), *libraries]


def run_or_fail(command: list[str], seconds: float, what: str, **run_options: object) -> None:
    """Runs the command. Raises BuildError if it fails or takes longer than `seconds`. `what`: its name in errors."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, **run_options)
    except subprocess.TimeoutExpired as error:
        raise BuildError("failed", f"{what} took longer than {seconds:.0f} s") from error
    except OSError as error:
        raise BuildError("failed", f"{what} did not start: {error}") from error
    if done.returncode != 0:
        reason = first_cause((done.stderr or done.stdout).strip().splitlines())
        raise BuildError("failed", f"{what} failed with {done.returncode}: {reason[:300]}")


def first_cause(lines: list[str]) -> str:
    """The line of a compiler's output that names the cause. If the linker fails, this line does not have the word
    "error"; only a later one has ("ld returned 1 exit status")."""
    linker = r"undefined reference|undefined symbol|cannot find|relocation|hidden symbol|multiple definition"
    is_consequence = re.compile("ld returned|linker command failed").search
    for is_cause in (lambda line: "error" in line.lower() and not is_consequence(line), re.compile(linker).search):
        if found := next(filter(is_cause, lines), None):
            return found
    return lines[-1] if lines else "no output"


def self_test(adapter: Path, torch: Torch, arguments: argparse.Namespace, compiler: str | None = None) -> None:
    """Tests the adapter in a child process with libforeshock.so preloaded (self_test.py). Raises BuildError if it
    fails. `compiler`: the one that built the adapter, if it was built here."""
    # libforeshock.so must not monitor this process (FORESHOCK=0), and torch must not load the Python helper.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FORESHOCK")}
    environment |= {"LD_PRELOAD": str(arguments.library), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "FORESHOCK": "0"}
    folder = adapter.parent.parent  # the temporary directory of replace()
    command = self_test_program(torch.home, folder, arguments, compiler)
    run_or_fail([*command, str(adapter)], TEST_SECONDS, "the adapter's self-test", env=environment)


def self_test_program(home: Path, folder: Path, arguments: argparse.Namespace, compiler: str | None) -> list[str]:
    """The command of the self-test: self_test.py, or a program, compiled into `folder`, if this Python would not import
    the torch at `home`. `compiler`: as in self_test(); None: any that works."""
    importable = importable_torch()
    if arguments.torch is None or (importable is not None and importable.resolve() == home):
        return [sys.executable, str(SOURCES / "self_test.py")]
    program = folder / "self_test"

    def attempt(compiler: str) -> None:
        command = compile_command(compiler, home, arguments.include, "self_test.cpp", program)
        command.append(f"-Wl,-rpath,{home / 'lib'}")
        run_or_fail(command, COMPILE_SECONDS, "compiling the adapter's self-test")

    if compiler is None:
        with_each_compiler(attempt)
    else:
        attempt(compiler)
    return [str(program)]


def announce() -> None:
    """Reports to cli/torch.cpp, which runs this program, that the result takes about a minute."""
    print("building", file=sys.stderr, flush=True)


def lock_exclusively(lock: IO[str]) -> None:  # waits, and announces the wait
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        announce()  # another process holds the lock while it builds
        fcntl.flock(lock, fcntl.LOCK_EX)


def build_adapter(torch: Torch, target: Path, arguments: argparse.Namespace) -> str:
    """Compiles the adapter to `target` and tests it. Returns the path of the compiler."""
    home, include = torch.home, arguments.include
    if not (home / "include" / "ATen" / "ATen.h").is_file():
        where = home / "include"
        raise BuildError("failed", f"torch has no C++ headers in {where}; install libtorch-dev or a wheel of torch")

    def attempt(compiler: str) -> None:
        announce()
        command = compile_command(compiler, home, include, "adapter.cpp", target)
        run_or_fail(command, COMPILE_SECONDS, f"compiling the adapter with {compiler}")
        self_test(target, torch, arguments, compiler)

    return with_each_compiler(attempt)


def fill(work: Path, torch: Torch, source_hash: str, link_only: bool, arguments: argparse.Namespace) -> str:
    """Puts a tested adapter, and the stamp that is_current() reads, into `work`. Returns the state, prebuilt or built.
    `source_hash`: source_digest(). `link_only`: link a prebuilt adapter, which must exist; do not copy or compile."""
    target = work / "adapter.so"
    prebuilt = prebuilt_adapter(arguments.prebuilt, *torch, source_hash)
    state, compiler = "prebuilt", ""
    if prebuilt is not None:
        if link_only:
            target.symlink_to(prebuilt.resolve())
        else:
            shutil.copyfile(prebuilt, target)
        try:
            self_test(target, torch, arguments)
        except BuildError as error:
            if link_only or not compilers():
                raise BuildError("failed", f"the prebuilt adapter does not work here: {error.reason}") from error
            prebuilt = None  # an adapter compiled on this machine may work
            target.unlink()
    if prebuilt is None:
        state, compiler = "built", build_adapter(torch, target, arguments)
    write_stamp(work, torch, source_hash, compiler, platform.machine())
    return state


def write_stamp(place: Path, torch: Torch, source_hash: str, compiler: str, machine: str) -> None:
    """Writes stamp.json, which is_current() reads, beside the adapter.so in the folder `place`."""
    adapter = digest([place / "adapter.so"])
    stamp = {"sources": source_hash, "adapter": adapter, "identity": identity_of(torch.home, torch.git)}
    stamp |= {"compiler": compiler, "flags": flags_for(machine), "abi": cxx11_abi(torch.home)}
    (place / "stamp.json").write_text(json.dumps(stamp, indent=1) + "\n")


def replace(place: Path, torch: Torch, source_hash: str, arguments: argparse.Namespace) -> str:
    """Fills a temporary directory and renames it to `place`, so that `place` is never incomplete. Returns the state."""
    with tempfile.TemporaryDirectory(prefix=".build-", dir=place.parent) as scratch:
        work = Path(scratch) / place.name
        work.mkdir()
        state = fill(work, torch, source_hash, link_only=place.parent == arguments.fallback, arguments=arguments)
        if place.exists():
            place.rename(Path(scratch) / "old")  # deleted with `scratch`
        work.rename(place)
    return state


def prepare_in(place: Path, torch: Torch, source_hash: str, identity: str, arguments: argparse.Namespace) -> str:
    """Puts the adapter into the folder `place` under a lock. Returns the state. Raises OSError if it cannot write."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as lock:
        lock_exclusively(lock)
        if not arguments.force and is_current(place, source_hash, identity):  # another process has built it
            return "ready"
        return replace(place, torch, source_hash, arguments)


def prepare(arguments: argparse.Namespace) -> dict[str, str]:
    """Puts the adapter into the cache, or else into the fallback. Returns state, torch, path and reason."""
    torch = find_torch(arguments.torch)
    answer = {"torch": torch.version, "path": "", "reason": ""}
    try:
        require_supported(torch.version)
        source_hash, identity = source_digest(arguments.include), identity_of(torch.home, torch.git)
        folders = [folder for folder in (arguments.cache, arguments.fallback) if folder is not None]
        places = [folder / f"torch-{torch.version}-{torch.git[:12]}" for folder in folders]
        for place in places:
            if not arguments.force and is_current(place, source_hash, identity):
                return answer | {"state": "ready", "path": str(place / "adapter.so")}
        if arguments.fallback and prebuilt_adapter(arguments.prebuilt, *torch, source_hash) is None:
            places.pop()  # the fallback, which can only get a link to a prebuilt adapter
        for place in places:
            try:
                state = prepare_in(place, torch, source_hash, identity, arguments)
                return answer | {"state": state, "path": str(place / "adapter.so")}
            except OSError:  # `place` cannot be written
                if place == places[-1]:
                    raise
        raise BuildError("failed", "there is no place for the adapter: set FORESHOCK_CACHE to a directory")
    except BuildError as error:
        return answer | {"state": error.state, "reason": error.reason, "path": ""}
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}; set FORESHOCK_CACHE to a directory that can be written"
        return answer | {"state": "failed", "reason": reason, "path": ""}


def compile_helper(folders: tuple[Path, ...] = HELPERS) -> None:
    """Writes the bytecode of the helper for this Python, unless it is current. Python writes none if
    PYTHONDONTWRITEBYTECODE is set, as in many containers; each `import torch` would then take 100 ms to compile it."""
    for folder in folders:
        if (folder / "foreshock_torch").is_dir():
            compileall.compile_dir(folder, quiet=2)  # 2: no output. A folder that cannot be written is left as it is.


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the PyTorch adapter of foreshock.")
    parser.add_argument("--cache", type=Path, help="directory the adapters are kept in")
    parser.add_argument("--fallback", type=Path, help="directory for a prebuilt adapter if the cache cannot be written")
    parser.add_argument("--library", type=Path, required=True, help="libforeshock.so, for the self-test")
    parser.add_argument("--include", type=Path, required=True, help="directory with foreshock/hook.h")
    parser.add_argument("--torch", type=Path, help="directory of a LibTorch: its include/ and lib/")
    parser.add_argument("--prebuilt", type=Path, default=PREBUILT, help="directory of adapters built before")
    parser.add_argument("--force", action="store_true", help="build even if the cache has it")
    arguments = parser.parse_args()
    if arguments.cache is None and arguments.fallback is None:
        parser.error("give --cache or --fallback")
    for name in ("cache", "fallback"):
        folder = getattr(arguments, name)
        setattr(arguments, name, folder.resolve() if folder is not None else None)
    for path in (arguments.library, arguments.include / "foreshock" / "hook.h"):
        if not path.is_file():
            parser.error(f"{path} does not exist")
    if arguments.torch is not None:
        arguments.torch = arguments.torch.resolve()
    arguments.library, arguments.include = arguments.library.resolve(), arguments.include.resolve()
    compile_helper()
    begin = time.monotonic()
    try:
        answer = prepare(arguments)
    except BuildError as error:
        answer = {"state": error.state, "torch": "", "path": "", "reason": error.reason}
    in_order = {key: answer[key] for key in ("state", "torch", "path", "reason")}
    print(json.dumps(in_order | {"seconds": round(time.monotonic() - begin, 3)}))


if __name__ == "__main__":
    main()
