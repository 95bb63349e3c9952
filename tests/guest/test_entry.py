"""How the library gets into a training: `import torch` loads it, in this process and in no other. Or it is preloaded,
by hand or with --preload."""

import os
import pathlib
import subprocess

import monitored
import native
import pytest

HELPER = str(monitored.BUILD / "share" / "foreshock" / "python")
HAS_LIBRARY = "'libforeshock.so' in open('/proc/self/maps').read()"


def test_the_library_is_where_torch_is():
    """Not in the shell that starts Python, and in Python only once torch is imported."""
    code = f"print({HAS_LIBRARY}); import torch; print({HAS_LIBRARY})"
    script = f'grep -c libforeshock.so /proc/$$/maps; exec {monitored.PYTHON} -c "$CODE"'
    run = monitored.run_monitored(["sh", "-c", script], CODE=code)
    assert (run.returncode, run.stdout.splitlines()) == (0, ["0", "False", "True"]), run.stderr


SHOW = "import os; print(os.environ.get('LD_PRELOAD'), os.environ.get('PYTHONPATH')); os.system('echo [$LD_PRELOAD]')"


@pytest.mark.parametrize("wrapper", [(), ("sh", "-c", 'true; "$@"', "sh")], ids=["alone", "behind_a_shell"])
def test_a_preloaded_python_starts_others_without_the_preload(without_agent, wrapper):
    """Its constructor adds the helper before the interpreter reads PYTHONPATH. Entries of the user stay."""
    other = str(next(pathlib.Path("/lib").glob("*-linux-gnu/libm.so.6")))
    preload = f"{monitored.LIBRARY}:{other}"
    command = [*wrapper, monitored.PYTHON, "-S", "-c", SHOW]
    for path, expected in (("", HELPER), ("/mine", f"{HELPER}:/mine"), (HELPER, HELPER)):
        done = subprocess.run(
            command, env=without_agent | {"LD_PRELOAD": preload, "PYTHONPATH": path}, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (0, f"{other} {expected}\n[{other}]\n"), done.stderr


def test_a_preloaded_python_is_entered_by_import_torch(without_agent, base):
    """LD_PRELOAD=libforeshock.so python train.py, without the launcher: the same helper, and the adapter of `run`."""
    shown = monitored.run_monitored([monitored.PYTHON, "-c", "import os; print(os.environ['FORESHOCK_ADAPTERS'])"])
    training = (
        "import torch\n"
        "q = torch.nn.Parameter(torch.ones(1, 1, 8, 8)); optimizer = torch.optim.SGD([q])\n"
        "torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward(); optimizer.step()\n"
    )
    del without_agent["PYTHONPATH"]
    environment = without_agent | {"FORESHOCK_ADAPTERS": shown.stdout.strip()}
    done = subprocess.run([monitored.PYTHON, "-c", training], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(list(base.glob("alone/*.seg"))) == 1


# Flags with which a program cannot, or must not, load our library.
FOREIGN = {
    "plain": [], "static": ["-static"], "static_pie": ["-static-pie"], "asan": ["-fsanitize=address"],
    "tsan": ["-fsanitize=thread"], "32_bit": ["-m32"], "musl": [], "setuid": [],
}  # fmt: skip


# docs/install.md names them: the dynamic linker, or the sanitizer, refuses the preloaded library.
REFUSES_PRELOAD = {"asan", "32_bit"}


def compare(program: list[str], bears_preload: bool) -> None:
    """As the command and as its child: the same output and exit status."""
    child = ["sh", "-c", f"{' '.join(program)}; exit $?"]
    for command, options in ((program, []), (child, []), (child, ["--preload"])):
        if options and not bears_preload:
            continue
        plain, run = monitored.run_plain(command), monitored.run_monitored(command, *options)
        theirs = [line for line in run.stderr.splitlines() if not line.startswith("foreshock: ")]
        assert (run.returncode, run.stdout, theirs) == (plain.returncode, plain.stdout, plain.stderr.splitlines())


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_programs_run_as_without_us(kind, tmp_path):
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text('#include <stdio.h>\nint main(void) { puts("out"); fputs("failed\\n", stderr); return 3; }\n')
    compiler = "musl-gcc" if kind == "musl" else native.c_compiler()
    try:
        subprocess.run([compiler, *FOREIGN[kind], str(source), "-o", str(program)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"no toolchain for {kind} programs here")
    if kind == "setuid":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        os.chown(program, 65534, 65534)
        program.chmod(0o4755)
    compare([str(program)], bears_preload=kind not in REFUSES_PRELOAD)


# Name of the file, its text, the command that builds it, and the command that runs it.
LANGUAGES = {
    "go": (
        "p.go",
        'package main\nimport ("fmt"; "os")\n'
        'func main() { fmt.Println("out"); fmt.Fprintln(os.Stderr, "failed"); os.Exit(3) }\n',
        ["go", "build", "-o", "program", "p.go"],
        ["./program"],
    ),
    "rust": (
        "p.rs",
        'fn main() { println!("out"); eprintln!("failed"); std::process::exit(3) }\n',
        ["rustc", "-o", "program", "p.rs"],
        ["./program"],
    ),
    "java": (
        "P.java",
        'class P { public static void main(String[] a) { System.out.println("out");'
        ' throw new RuntimeException("failed"); } }\n',
        ["javac", "P.java"],
        ["java", "P"],
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("language", LANGUAGES)
def test_programs_of_other_languages_run_as_without_us(language, tmp_path, monkeypatch):
    name, text, build, command = LANGUAGES[language]
    (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    try:
        environment = os.environ | {"GO111MODULE": "off", "GOCACHE": str(tmp_path / "cache")}
        subprocess.run(build, check=True, capture_output=True, env=environment)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"no toolchain for {language} here")
    compare(command, bears_preload=True)
