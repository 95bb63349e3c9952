"""Tests the packages as a new user would install them: on a bare system, without root and without a compiler.

    python3 newcomer.py PACKAGES WHEELS RELEASE

Runs on Python 3.9 or later. Installs foreshock's wheel and its tarball, which are in the folder PACKAGES, and runs
trainings under each. The trainings use torch RELEASE, which pip installs from the folder WHEELS. Prints a line for each
group of checks that passes. The first failed check ends the program with the reason. Parameters of the functions below:
`plain` is facts_of() of the training without foreshock, `python` is the interpreter of the environment with torch.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
HOME = pathlib.Path.home()
TRAINING = [str(HERE / "newcomer_training.py")]


def must(condition, text):
    """Ends the program with `text` if the condition is false."""
    if not condition:
        sys.exit("FAILED: " + text)


def ok(what, detail=""):
    print(f"  ok   {what:34} {detail}", flush=True)


def call(*command, status=0, **variables):
    """Runs a command, which must end with `status`. Returns its output and errors. `variables`: added environment."""
    words, environment = [str(word) for word in command], dict(os.environ, **variables)
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    text = done.stdout + done.stderr
    must(done.returncode == status, f"{command} ended with {done.returncode}:\n{text[-3000:]}")
    return text


def facts_of(output):
    """What newcomer_training.py prints: a line of JSON, among warnings of torch, with losses and a hash of results."""
    return json.loads(next(line for line in output.splitlines() if line.startswith("{")))


def environment_with_torch(wheels, release):
    """The Python of a virtual environment with torch and without foreshock, which is made once per release of torch."""
    folder = HOME / "training"
    python, ready = folder / "bin" / "python", folder / f"torch-{release}"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        call(sys.executable, "-m", "venv", folder)
        call(python, "-m", "pip", "install", "--no-index", "--find-links", wheels, f"torch=={release}")
        ready.touch()
    call(python, "-m", "pip", "uninstall", "--yes", "foreshock")
    return python


def scrape(line):
    """Reads /metrics of the agent that printed `line`, "foreshock: run X, page at URL"."""
    address = re.search(r"page at (http://\S+?)/?( |$)", line).group(1)
    with urllib.request.urlopen(address + "/metrics", timeout=10) as page:
        return page.read().decode()


def train_under(foreshock, python, plain, cache):
    """Runs the training under the program `foreshock`. Checks that its results equal `plain`, that all samples (partly
    copied attention calls) were judged and counted in /metrics, and that no files remain in shared memory. Returns a
    line about the training."""
    summary = HOME / "summary.json"
    # With the default budget, a busy machine might sample none of these few steps.
    sampling = ["--every", "4", "--max-slowdown", "100%"]
    command = [str(foreshock), "run", *sampling, "--summary", str(summary), "--", str(python), *TRAINING]
    environment = dict(os.environ, FORESHOCK_CACHE=str(cache), FORESHOCK_RECORD="off")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    errors, metrics = [], ""
    for line in process.stderr:
        errors.append(line)
        if "page at" in line:
            # Scrapes during the run, since the agent ends with the run.
            while process.poll() is None and "foreshock_attention_judged_total{" not in metrics:
                metrics = scrape(line.strip())
                time.sleep(0.05)
    output = process.stdout.read()
    must(process.wait() == 0, "".join(errors)[-3000:])
    facts = json.loads(output.splitlines()[-1])
    must(facts == plain, f"other results than without foreshock: {facts} {plain}")
    rank = json.loads(summary.read_text())["ranks"][0]
    for name, counts in rank["attention"].items():  # forward and backward
        must(counts["judged"] > 0 and counts["judged"] == counts["sampled"], f"{name}: {counts}")
        accounted = counts["unsampled"] + counts["sampled"] + sum(counts["skipped"].values())
        must(counts["calls"] == accounted, f"{name}: {counts}")
    must("foreshock_attention_judged_total{" in metrics, "/metrics had no judged samples: " + metrics[-500:])
    left = list(pathlib.Path("/dev/shm").glob("foreshock*/*/*"))
    must(not left, f"left behind: {left}")
    passes = rank["attention"].items()
    judged = " and ".join(f"{counts['judged']} of {counts['calls']} {name}" for name, counts in passes)
    return f"{judged} calls judged, loss {facts['first']:.2f} -> {facts['last']:.2f}, same bits"


def doctor(foreshock, python, cache, status=0):
    """Runs `foreshock doctor`, which finds or builds the adapter for the torch of `python`, in the folder `cache`."""
    return call(foreshock, "doctor", "--python", python, FORESHOCK_CACHE=str(cache), status=status)


def try_installation(what, foreshock, python, plain):
    """Checks that an installation finds a prebuilt adapter for the torch of `python`. Runs the training under it."""
    cache = HOME / "caches" / what.replace(" ", "-")
    version = call(foreshock, "--version").split()[1]
    text = doctor(foreshock, python, cache)
    found = re.search(r"ok +(torch \S+) +(prebuilt adapter tested.*)", text)
    must(found, f"doctor of {what} took no prebuilt adapter:\n{text}")
    ok(f"{what}: doctor", f"foreshock {version}, {found.group(1)}, {found.group(2)}")
    ok(f"{what}: training", train_under(foreshock, python, plain, cache))


def files_below(folder):
    """All files below a folder, without Python's caches of imported modules."""
    return {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def try_wheel(packages, python, plain):
    """Installs the wheel in a virtual environment, where uninstalling must leave no file, and with --user."""
    (wheel,) = packages.glob("foreshock-*.whl")
    before = files_below(python.parents[1])  # the folder of the virtual environment
    call(python, "-m", "pip", "install", "--no-index", wheel)
    call(python, "-c", "import foreshock; foreshock.report(step=1)")  # does nothing outside of a run
    try_installation("wheel in a venv", python.parent / "foreshock", python, plain)
    call(python, "-m", "pip", "uninstall", "--yes", "foreshock")
    after = files_below(python.parents[1])
    must(after <= before, f"uninstalling left {sorted(map(str, after - before))}")
    ok("wheel in a venv: uninstalled")
    managed = list(pathlib.Path("/usr/lib").glob("python3*/EXTERNALLY-MANAGED"))
    override = ["--break-system-packages"] if managed else []  # without it pip refuses --user on Debian 12
    call(sys.executable, "-m", "pip", "install", "--user", "--no-index", *override, wheel)
    try_installation("wheel with --user", HOME / ".local" / "bin" / "foreshock", python, plain)
    call(sys.executable, "-m", "pip", "uninstall", "--yes", *override, "foreshock")


def try_tarball(packages, python, plain):
    """Uses the unpacked tarball: as it is, as a service, after the folder was moved, without adapters, and in a path
    with a blank."""
    (tarball,) = packages.glob("foreshock-*.tar.gz")
    first, with_blank = HOME / "first", HOME / "second place"
    for folder in (first, with_blank):
        shutil.rmtree(folder, ignore_errors=True)
    first.mkdir()
    call("tar", "-C", first, "-xzf", tarball)
    (tree,) = first.iterdir()
    try_installation("tarball", tree / "bin" / "foreshock", python, plain)
    try_service(tree, python, plain)
    moved = HOME / "second"
    shutil.rmtree(moved, ignore_errors=True)
    first.rename(moved)
    tree = moved / tree.name
    try_installation("tarball, moved", tree / "bin" / "foreshock", python, plain)
    (tree / "share" / "foreshock" / "adapters").rename(moved / "adapters")
    empty = HOME / "caches" / "empty"
    shutil.rmtree(empty, ignore_errors=True)
    text = doctor(tree / "bin" / "foreshock", python, empty, status=1)
    must("no C++ compiler found; install g++" in text, text)
    ok("no adapter and no compiler", re.search(r"no C\+\+ compiler.*", text).group(0))
    moved.rename(with_blank)  # LD_PRELOAD cannot have such a path, since a blank separates its entries
    text = call(with_blank / tree.name / "bin" / "foreshock", "run", "--preload", "--", "true")
    must("not monitoring: " in text and "cannot be preloaded" in text, text)
    ok("a path with a blank", "runs unmonitored and says why")


def service_metric(address, token, name, run):
    """The sum of the metric foreshock_<name> over all series of the run."""
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as page:
        lines = page.read().decode().splitlines()
    values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f'foreshock_{name}{{run="{run}"')]
    return sum(map(float, values))


def wait_until(holds, text, seconds=60):
    """Waits until holds() is true. Ends the program with `text` after `seconds`."""
    end = time.monotonic() + seconds
    while not holds():
        must(time.monotonic() < end, text)
        time.sleep(0.2)


def task_environment(tree, base):
    """The variables of a Slurm task that slurmd sets because the task prolog prints them as "export NAME=value"."""
    slurm = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_JOB_USER": "newcomer"}
    slurm.update(FORESHOCK_PREFIX=str(tree), FORESHOCK_TREE=str(base))
    script = tree / "share" / "foreshock" / "deploy" / "slurm" / "task_prolog.sh"
    lines = call(script, **slurm).splitlines()
    must(len(lines) == 5, f"the task prolog says {lines}")  # one for each variable
    return dict(line[len("export ") :].split("=", 1) for line in lines)


def try_service(tree, python, plain):
    """Runs one agent as a service for all runs below a folder, and a training as a Slurm task, which is monitored only
    because of the variables of the task prolog."""
    foreshock, base = tree / "bin" / "foreshock", pathlib.Path("/dev/shm/tree")
    token, targets = HOME / "token", HOME / "targets.json"
    base.mkdir()
    token.write_text("a-token-of-the-newcomer\n")
    token.chmod(0o600)
    if targets.exists():
        targets.unlink()
    doctor(foreshock, python, tree / "cache")
    command = [foreshock, "agent", "--tree", base, "--port", "0", "--token-file", token, "--file-sd", targets]
    words = [str(word) for word in command]
    agent = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(targets.exists, "the agent of the tree does not start")
        (address,) = json.loads(targets.read_text())[0]["targets"]
        variables = task_environment(tree, base)
        output = call(python, *TRAINING, FORESHOCK_EVERY="4", FORESHOCK_MAX_SLOWDOWN="100%", **variables)
        must(facts_of(output) == plain, "other results under the service")

        def metric(name):
            return service_metric(address, token.read_text().strip(), name, "newcomer/77.0")

        wait_until(
            lambda: metric("attention_judged_total") == metric("attention_samples_total") > 0, "not all is judged"
        )
        ok("tarball: service and task prolog", f"{metric('attention_judged_total'):.0f} calls judged, same bits")
    finally:
        agent.terminate()
        agent.wait()
        shutil.rmtree(base)


def main():
    packages, wheels, release = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    must(os.geteuid() != 0, "to be run without root")
    compilers = [name for name in ("g++", "c++", "clang++", "gcc", "cc") if shutil.which(name)]
    must(not compilers, f"there is a compiler: {compilers}")
    shutil.rmtree(HOME / "caches", ignore_errors=True)
    python = environment_with_torch(wheels, release)
    plain = facts_of(call(python, *TRAINING))
    ok("a training without foreshock", f"torch {plain['torch']}, Python {sys.version.split()[0]}")
    try_wheel(packages, python, plain)
    try_tarball(packages, python, plain)


if __name__ == "__main__":
    main()
