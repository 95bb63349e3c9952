"""Rule 10: `import torch` never fails because of us, nor the import of any module that has an initModule of its own, as
torch has: whoever calls that name gets the one it would have got without us, whatever was imported before."""

import pathlib
import subprocess
import types

import monitored
import native
import pytest
from tiers import keep

SOURCE = pathlib.Path(__file__).with_name("module_of_another.c")
# Whether the address that we return to tells who called, and whether the caller was bound before its first call.
JUMPS, CALLS = ("-O2", "-Wl,-z,now"), ("-O0", "-fno-optimize-sibling-calls", "-Wl,-z,lazy")
BUILDS = {
    "one": JUMPS, "one_calls": CALLS, "split": JUMPS, "split_calls": CALLS, "late": JUMPS, "late_calls": CALLS,
    "late_split": JUMPS, "late_split_calls": CALLS, "fails": (*JUMPS, "-DFAILS_FIRST"), "each": (*JUMPS, "-DEACH_TIME"),
}  # fmt: skip


def compile_shared(target: pathlib.Path, *arguments: str) -> str:
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", str(SOURCE)]
    subprocess.run([native.c_compiler(), *flags, *arguments, "-o", str(target)], check=True)
    return str(target)


@pytest.fixture(scope="module")
def modules(tmp_path_factory) -> pathlib.Path:
    """A folder of packages, each with a _C: stub and body in one library or in two, the last a stub without a body."""
    folder = tmp_path_factory.mktemp("modules")
    for number, (name, flags) in enumerate(BUILDS.items()):
        package, body = folder / name, f"-DBODY={number}"
        package.mkdir()
        (package / "__init__.py").touch()
        if "split" in name:
            library = compile_shared(package / f"lib{name}.so", body, *flags)
            compile_shared(package / "_C.so", "-DSTUB", *flags, library, f"-Wl,-rpath,{package}")
        else:
            compile_shared(package / "_C.so", "-DSTUB", body, *flags)
    (folder / "bodiless").mkdir()
    compile_shared(folder / "bodiless" / "_C.so", "-DSTUB", *JUMPS)
    return folder


HELP = """
import importlib, sys
def mine(*names):
    for name in names:
        module = importlib.import_module(name + "._C")
        assert module.__name__ == name + "._C", module
        print(name, module.mine, module.calls)
def each():
    sys.modules.pop("each._C", None)
    assert importlib.import_module("each._C").__name__ == "each._C"
def refused(name):
    try: importlib.import_module(name + "._C")
    except ImportError as error: print(name, "not yet" in str(error) or "initModule" in str(error))
def torch_works():
    import torch
    print(torch.ones(2).sum().item(), "adapter.so" in open("/proc/self/maps").read())
"""


@pytest.fixture(params=keep(["plain", "switched_off", "run"], "plain", "run"))
def imports(request, modules):
    """imports(code, *folders): what the code prints, without us, with us switched off, and under `foreshock run`."""

    def run(code: str, *folders: pathlib.Path) -> list[str]:
        command = [monitored.PYTHON, "-c", HELP + code]
        environment = {"PYTHONPATH": ":".join(map(str, (modules, *folders)))}
        if request.param == "run":
            done = monitored.run_monitored(command, **environment)
        else:
            if request.param == "switched_off":
                environment |= {"LD_PRELOAD": str(monitored.LIBRARY), "FORESHOCK": "0"}
            done = monitored.run_plain(command, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return types.SimpleNamespace(run=run, torch_works=f"2.0 {request.param == 'run'}")


def told(*names: str, calls: int = 1) -> list[str]:
    return [f"{name} {list(BUILDS).index(name)} {calls}" for name in names]


EARLY, LATE = ("one", "one_calls", "split", "split_calls"), ("late", "late_split", "late_calls", "late_split_calls")


def test_without_torch(imports):
    assert imports.run(f"mine(*{EARLY}); each(); mine(*{LATE}); each()") == told(*EARLY, *LATE)


def test_before_and_after_torch(imports):
    code = f"mine(*{EARLY}); each(); torch_works(); each(); mine(*{LATE}); each(); mine(*{EARLY}); torch_works()"
    works = imports.torch_works
    assert imports.run(code) == [*told(*EARLY), works, *told(*LATE, *EARLY), works]


def test_while_torch_is_imported(imports, tmp_path):
    """As an entry point of torch.backends brings it in."""
    metadata = tmp_path / "brought_in-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: brought-in\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nbrought_in = brought_in:come\n")
    (tmp_path / "brought_in.py").write_text(f"{HELP}\ndef come(): mine(*{EARLY})\n")
    assert imports.run(f"torch_works(); mine(*{LATE})", tmp_path) == [*told(*EARLY), imports.torch_works, *told(*LATE)]


def test_a_second_try_after_a_failure(imports):
    assert imports.run("refused('fails'); mine('one', 'split', 'fails')") == [
        "fails True", *told("one", "split"), *told("fails", calls=2),
    ]  # fmt: skip


def test_mapped_earlier_than_it_is_imported(imports, modules):
    """Whether lazily bound or not, who called is not who was mapped last."""
    paths = [str(modules / name / "_C.so") for name in EARLY]
    order = [*EARLY[::2], "late", *EARLY[:0:-2]]
    code = f"import ctypes; kept = [ctypes.CDLL(path) for path in {paths}]; mine(*{order})"
    assert imports.run(code) == told(*order)


def test_nobody_has_the_one_that_is_called(imports):
    """What the dynamic linker would have refused is an ImportError as ever: programs look for that."""
    assert imports.run("refused('bodiless'); mine('one'); refused('bodiless'); torch_works(); refused('bodiless')") == [
        "bodiless True", *told("one"), "bodiless True", imports.torch_works, "bodiless True",
    ]  # fmt: skip


def test_python_does_not_tell_which_module_is_imported(imports, modules):
    """Somebody's own way to import: what was mapped last has been mapped for that."""
    code = f"""
import _imp, importlib.util
args = [len]  # what an importer has there has an origin
def bring_in(name):
    own = importlib.util.spec_from_file_location(name + "._C", {str(modules)!r} + "/" + name + "/_C.so")
    module = sys.modules[name + "._C"] = _imp.create_dynamic(own)
    mine(name)
for name in {EARLY}: bring_in(name)
torch_works()
for name in {LATE}: bring_in(name)
"""
    assert imports.run(code) == [*told(*EARLY), imports.torch_works, *told(*LATE)]
