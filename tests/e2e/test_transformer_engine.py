"""TransformerEngine's fused attention, by a stand-in with the same functions on the host: judged in the versions whose
arguments are known, passed on untouched in all others."""

import collections
import pathlib
import subprocess

import monitored
import native
import pytest
from monitored import EVERYTHING, run_monitored, run_plain
from tiers import keep

SOURCES = monitored.ROOT / "tests" / "support" / "transformer_engine"
TRAINING = pathlib.Path(__file__).parent / "te_training.py"
STEPS = 5
# One for each list of arguments, and the first and last with each form of handles.
VERSIONS = {
    "2.0.0": 0, "2.3.0": 3, "2.4.0": 4, "2.8.0": 8, "2.9.0": 9, "2.11.0": 11, "2.14.1": 14, "2.18.0": 18,
}  # fmt: skip
# Outputs and log-sum-exp are fp64 sums, rounded to fp32 once (6e-8), over values of at least a tenth. The gradient of a
# query is a difference that cancels some hundred-fold on rows that see few keys. A wrong stride is an error near 1.
ROUNDING = {"forward": 1e-6, "backward": 1e-3}

# Layers of one training: what is described
JUDGED = [f"layout={layout}" for layout in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)]
JUDGED += ["mask=0", "layout=4,mask=2,right=0,kv_heads=2", "mask=2,keys=28,kv_heads=1", "mask=4,keys=28", "mask=4"]
MIXED = ["layout=15", "layout=16,kv_heads=2"]  # from 2.2 on
FORMATS = ["layout=25,kv_heads=2", "layout=4,o_format=1,do_format=7,dqkv_layout=9", "layout=9,dqkv_layout=5"]  # 2.15
SKIPPED = {
    "layout=14": "layout", "layout=19,mask=1": "layout", "mask=1": "mask", "mask=3": "mask", "mask=2,left=4": "mask",
    "mask=0,right=0": "mask", "bias=2": "mask", "bias=3": "mask", "fp8=1": "fp8",
}  # fmt: skip
SINKS = {"softmax=1": "unknown"}  # from 2.8 on
CORNERS = {"mask=2,keys=28,corner=1": "mask", "mask=4,keys=28,corner=0": "mask"}  # from 2.12 on


def build(folder: pathlib.Path, minor: int, versions: list[str], *more_flags: str) -> str:
    """The trainer, beside a package of that minor version which says that it is of `versions`."""
    packages = folder / "site-packages"
    library = packages / "transformer_engine" / "wheel_lib" / "libtransformer_engine.so"
    library.parent.mkdir(parents=True)
    for number, version in enumerate(versions):
        name = "transformer_engine" if number == 0 else f"transformer_engine_cu{11 + number}"
        (packages / f"{name}-{version}.dist-info").mkdir()
    (packages / "transformer_engine_torch-1.0.0.dist-info").mkdir()  # another package
    compile_line = [native.cxx_compiler(), "-std=c++20", "-O1", "-Wall", f"-DTE_MINOR={minor}", *more_flags]
    subprocess.run([*compile_line, "-shared", "-fPIC", str(SOURCES / "stand_in.cpp"), "-o", str(library)], check=True)
    program = folder / "trainer"
    more = [f"-I{native.INCLUDE}", str(SOURCES / "trainer.cpp"), str(library), f"-Wl,-rpath,{library.parent}"]
    subprocess.run([*compile_line, *more, "-o", str(program)], check=True)
    return str(program)


def as_library(folder: pathlib.Path, minor: int) -> pathlib.Path:
    """The trainer as a library for a training in Python, beside what build() has made."""
    engine = folder / "site-packages" / "transformer_engine" / "wheel_lib" / "libtransformer_engine.so"
    library = folder / "libtrainer.so"
    flags = ["-std=c++20", "-O1", f"-DTE_MINOR={minor}", "-shared", "-fPIC", f"-I{native.INCLUDE}"]
    sources = [str(SOURCES / "trainer.cpp"), str(engine), f"-Wl,-rpath,{engine.parent}"]
    subprocess.run([native.cxx_compiler(), *flags, *sources, "-o", str(library)], check=True)
    return library


def both(program: str, *cases: str, options: tuple[str, ...] = EVERYTHING) -> monitored.Run:
    """The run under the monitor, after it has been shown to change no result and no argument."""
    command = [program, str(STEPS), *cases]
    plain, watched = run_plain(command), run_monitored(command, "--preload", *options)
    assert plain.told() == watched.told(), watched.stderr
    assert plain.stderr == ""
    return watched


def cases_of(minor: int) -> tuple[list[str], dict[str, str]]:
    judged = JUDGED + (MIXED if minor >= 2 else []) + (FORMATS if minor >= 15 else [])
    skipped = SKIPPED | (SINKS if minor >= 8 else {}) | (CORNERS if minor >= 12 else {})
    return judged, skipped


@pytest.mark.parametrize("version", keep(VERSIONS, "2.18.0"))
def test_known_versions_are_judged(version, tmp_path):
    minor = VERSIONS[version]
    judged, skipped = cases_of(minor)
    program = build(tmp_path, minor, [version, version])
    run = both(program, *judged, *skipped, "training=0,mask=0")
    rank = run.rank()
    monitored.assert_conserved(rank)
    layers = len(judged) + len(skipped)
    assert {name: of["calls"] for name, of in rank["attention"].items()} == {
        "forward": STEPS * (layers + 1), "backward": STEPS * layers,
    }  # fmt: skip
    assert rank["attention_unseen"] == []

    assert {sample["tensor"] for sample in run.of("sample")} == {"out", "grad_query", "grad_key", "grad_value"}
    seen = collections.defaultdict(set)
    for sample in run.of("sample"):
        forward = sample["pass"] == "forward"
        assert sample["op"] == ("nvte_fused_attn_fwd" if forward else "nvte_fused_attn_bwd")
        place = sample["call"] if forward else 2 * layers - sample["call"]  # backward calls come last to first
        assert sample["relative_error_max"] < ROUNDING[sample["pass"]], (place, sample)
        assert sample["scale"] == pytest.approx(0.3)
        seen[sample["pass"]].add(place)
        if forward:
            trains = place < layers
            assert (sample["lse_error_abs_max"] is not None) == trains, sample
            assert not trains or sample["lse_error_abs_max"] < ROUNDING["forward"]
    # Which slots are free decides what is taken in a step, so not all need come; what comes is nothing else.
    assert seen["forward"] <= {*range(len(judged)), layers}
    assert seen["backward"] <= set(range(len(judged)))
    assert len(seen["forward"]) > len(judged) / 2 < len(seen["backward"])
    for of in rank["attention"].values():
        assert {reason for reason, count in of["skipped"].items() if count} <= {*skipped.values(), "ring_full"}


@pytest.mark.long
def test_what_is_not_described_says_why(tmp_path):
    program = build(tmp_path, 18, ["2.18.0"])
    cases = SKIPPED | SINKS | CORNERS
    rank = both(program, *cases).rank()
    monitored.assert_conserved(rank)
    for of in rank["attention"].values():
        found = {reason: count for reason, count in of["skipped"].items() if count}
        # None takes a slot, so each is met in every sampled step: all but those before the first tick.
        sampled_steps, rest = divmod(sum(found.values()), len(cases))
        assert (sampled_steps > 0, rest, of["judged"]) == (True, 0, 0)
        assert found == {reason: sampled_steps * count for reason, count in collections.Counter(cases.values()).items()}


def test_memory_that_nobody_says_is_the_host_s_is_not_read(tmp_path):
    """A driver that does not answer is no reason to take a device's memory for ours."""
    rank = both(build(tmp_path, 18, ["2.18.0"], "-DTE_ON_A_DEVICE"), "layout=4").rank()
    monitored.assert_conserved(rank)
    for of in rank["attention"].values():
        assert of["judged"] == 0
        assert {reason for reason, count in of["skipped"].items() if count} == {"device"}


LOCAL = """
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  int (*call)(void) = library ? (int (*)(void))dlsym(library, "call") : NULL;
  printf("%d\\n", call ? call() : -1);
  return argc != 2;
}
"""


def test_a_function_of_that_name_in_another_library_is_met(tmp_path):
    """Whoever is preloaded with us, and has such a function of its own."""
    (tmp_path / "own.c").write_text(
        "int nvte_fused_attn_fwd(void) { return 42; }\nint call(void) { return nvte_fused_attn_fwd(); }\n"
    )
    (tmp_path / "local.c").write_text(LOCAL)
    library, program = tmp_path / "libown.so", tmp_path / "local"
    subprocess.run([native.c_compiler(), "-shared", "-fPIC", str(tmp_path / "own.c"), "-o", str(library)], check=True)
    subprocess.run([native.c_compiler(), str(tmp_path / "local.c"), "-ldl", "-o", str(program)], check=True)
    for environment in ({}, {"LD_PRELOAD": str(monitored.LIBRARY)}):
        done = run_plain([str(program), str(library)], **environment)
        assert (done.returncode, done.stdout.strip()) == (0, "42"), done.stderr


@pytest.mark.parametrize(
    ("versions", "minor"),
    keep(
        [(["99.0.0"], 99), (["2.8.0+5a5b5ea"], 8), (["2.19.0.dev0"], 18), (["2.8.0", "2.9.0"], 8), ([], 18)],
        (["99.0.0"], 99),
        several=True,
    ),
)
def test_other_versions_are_passed_on_untouched(versions, minor, tmp_path):
    program = build(tmp_path, minor, versions)
    run = both(program, *JUDGED, "rng=666")
    rank = run.rank()
    monitored.assert_conserved(rank)
    # Nothing is read of the arguments, so the question for the workspace cannot be told from the call.
    calls = STEPS * 2 * (len(JUDGED) + 1)
    assert [of["calls"] for of in rank["attention"].values()] == [calls, calls]
    assert run.of("sample") == []
    for of in rank["attention"].values():
        assert {name for name, count in of["skipped"].items() if count} == {"unknown"}
    name = versions[0] if len(versions) == 1 else versions[-1] if versions else "?"
    (told,) = rank["attention_unseen"]
    assert told["op"].startswith("transformer_engine ")
    assert len(versions) > 1 or told == {"op": f"transformer_engine {name}", "evidence": "used"}


# What it says, and what it is: builds of a branch from before its release have the arguments of the version before.
# Two of them by numbers instead of addresses for handles, as 2.8 and later have them.
OTHER_ARGUMENTS = [
    ("2.2.0", 0, False), ("2.8.0", 7, False), ("2.8.0", 7, True), ("2.9.0", 8, True), ("2.10.0", 9, True),
    ("2.12.0", 11, True), ("2.15.0", 14, True), ("2.14.1", 18, True), ("2.7.0", 8, False), ("2.18.0", 0, False),
]  # fmt: skip


@pytest.mark.parametrize(("version", "minor", "by_number"), keep(OTHER_ARGUMENTS, OTHER_ARGUMENTS[0], several=True))
def test_a_version_with_the_arguments_of_another_one_is_passed_on_untouched(version, minor, by_number, tmp_path):
    program = build(tmp_path, minor, [version], *(["-DTE_HANDLES_ARE_NUMBERS"] if by_number else []))
    cases = ["layout=9", "layout=4", "layout=0,mask=0", "layout=1,mask=0,right=0", "left=2,right=0"]
    run = both(program, *cases)
    rank = run.rank()
    monitored.assert_conserved(rank)
    assert run.of("sample") == []
    for of in rank["attention"].values():
        assert {name for name, count in of["skipped"].items() if count} == {"unknown"}
    assert rank["attention_unseen"] == [{"op": f"transformer_engine {version}: other arguments", "evidence": "used"}]


@pytest.mark.long
def test_handles_that_are_numbers_are_judged(tmp_path):
    judged, skipped = cases_of(18)
    run = both(build(tmp_path, 18, ["2.18.0"], "-DTE_HANDLES_ARE_NUMBERS"), *judged, *skipped)
    rank = run.rank()
    monitored.assert_conserved(rank)
    assert rank["attention_unseen"] == []
    assert {sample["pass"] for sample in run.of("sample")} == {"forward", "backward"}
    for sample in run.of("sample"):
        assert sample["relative_error_max"] < ROUNDING[sample["pass"]]


@pytest.mark.long
@pytest.mark.parametrize("recompute", [[], ["saved"], ["reentrant"]])
def test_layers_are_named_by_the_order_of_their_calls_also_where_they_are_computed_again(recompute, tmp_path):
    """Layer n has 20 + n queries. A forward call in the middle of a backward pass belongs to no place in that order."""
    build(tmp_path, 18, ["2.18.0"])
    command = [monitored.PYTHON, str(TRAINING), str(as_library(tmp_path, 18)), "20", *recompute]
    plain, run = run_plain(command), run_monitored(command, *EVERYTHING)
    assert plain.told() == run.told(), run.stderr
    monitored.assert_conserved(run.rank())
    layers = {(sample["pass"], sample["layer"], sample["query_length"]) for sample in run.of("sample")}
    named = {("forward", f"call{layer:03}", 20 + layer) for layer in range(3)}
    named |= {("backward", f"call{layer:03}", 20 + layer) for layer in range(3)}
    assert named <= layers
    # Before the order is known, and where a layer is computed again, no name is given.
    assert {name for _, name, _ in layers - named} <= {None}


@pytest.mark.long
def test_with_dropout_scores_are_judged(tmp_path):
    run = both(build(tmp_path, 18, ["2.18.0"]), "dropout=0.1")
    rank = run.rank()
    monitored.assert_conserved(rank)
    samples = run.of("sample")
    assert "attention output not checked" in run.stderr
    assert {sample["pass"] for sample in samples} == {"forward"}
    for sample in samples:
        assert (sample["relative_error_max"], sample["bias_ulp"]) == (None, None)
        assert sample["lse_error_abs_max"] < ROUNDING["forward"]
        assert sample["entropy_nats_mean"] > 0
    skipped = rank["attention"]["backward"]["skipped"]
    assert {reason for reason, count in skipped.items() if count} == {"dropout"}


@pytest.mark.long
def test_what_it_throws_passes_through_and_is_counted(tmp_path):
    program = build(tmp_path, 18, ["2.18.0"])
    run = both(program, "layout=9", "rng=666,layout=9", "layout=4")
    assert run.told()[0]["thrown"] == STEPS
    rank = run.rank()
    monitored.assert_conserved(rank)
    forward = rank["attention"]["forward"]
    assert forward["calls"] == 3 * STEPS
    # The first step's calls came before there was a segment, and that is all.
    assert forward["skipped"]["unknown"] == STEPS - 1
