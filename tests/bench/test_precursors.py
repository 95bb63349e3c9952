"""bench/precursors: what is kept and published, and one small pair of trainings through the whole of it."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bench" / "precursors.py"
sys.path.append(str(ROOT / "bench" / "precursors"))

import attention_errors  # noqa: E402
import comparison  # noqa: E402
import provenance  # noqa: E402
import recipes  # noqa: E402
import scoring  # noqa: E402
import tables  # noqa: E402

pytestmark = pytest.mark.long


def bench(out: pathlib.Path, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(PROGRAM), "--short", "--out", str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=os.environ)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, subprocess.CompletedProcess]:
    out = tmp_path_factory.mktemp("precursors") / "out"
    process = bench(out)
    return pathlib.Path(f"{out}-short"), process


def test_one_pair_from_training_to_results(done):
    out, process = done
    assert process.returncode == 0, process.stderr
    results = json.loads((out / "results.json").read_text())
    trained = {each["name"]: each for each in results["recipes"] if each["seeds"]}
    seed = recipes.FIRST_SEED
    assert {name: each["seeds"] for name, each in trained.items()} == {"stable-text": [seed], "corrupt-batches": [seed]}
    assert {name: each["events"] for name, each in trained.items()} == {"stable-text": 0, "corrupt-batches": 1}
    assert [each["steps_lost"] for each in trained.values()] == [0, 0]
    for found in results["shipped"].values():
        assert found["all"]["events"] == 1
    fault, control = (one_reduced(out, name) for name in ("corrupt-batches", "stable-text"))
    assert (fault["onsets"], control["onsets"]) == ([recipes.recipe("corrupt-batches").begin(seed)], [])
    assert min(fault["lines"].values()) > 0, fault["lines"]  # attention, weights and optimizer were watched
    assert len(fault["layers"]) == recipes.LAYERS
    # What the agent found live is what is found in the record: at least the loss event.
    assert results["made"]["live_events"] >= 1
    assert (results["made"]["replays"], results["made"]["stale"]) == (2, 0)
    assert results["made"]["judges"] == {provenance.of_judges(): 2}
    # Until the fault begins the two are one training.
    before = (recipes.recipe("corrupt-batches").begin(seed) - 1) // scoring.BLOCK
    assert fault["losses"][:before] == control["losses"][:before]
    assert fault["losses"][before : before + 2] != control["losses"][before : before + 2]
    assert set(results["shipped"]) >= {"gradient_norm", "entropy_drop", "ZClip 2.5 z"}


def one_reduced(out: pathlib.Path, recipe: str) -> dict:
    (path,) = [each for each in (out / "records").glob(f"{recipe}-*.json") if not each.name.endswith(".made.json")]
    return json.loads(path.read_text())


def test_a_record_is_never_made_twice(done):
    out, _ = done
    records = sorted((out / "records").glob("*.jsonl"))
    before = [(path.stat().st_mtime_ns, path.stat().st_size) for path in records]
    assert len(records) == 2
    whole = (out / "results.json").read_bytes()
    again = bench(out.with_name("out"))
    assert again.returncode == 0, again.stderr
    assert [(path.stat().st_mtime_ns, path.stat().st_size) for path in records] == before
    assert (out / "results.json").read_bytes() == whole


def test_trainings_of_another_length_are_refused(done, tmp_path):
    out = tmp_path / "out-short"
    out.mkdir()
    (out / "steps.json").write_text("null")
    other = bench(tmp_path / "out")
    assert (other.returncode, other.stderr.count("\n")) == (1, 1)
    assert "another --out" in other.stderr


@pytest.mark.parametrize("words", [["--tuning"], []])
def test_short_and_tuning_trainings_are_not_kept(tmp_path, words):
    process = bench(tmp_path / "out", "--keep", *words)
    assert (process.returncode, process.stderr.count("\n")) == (2, 1)
    assert "--keep is for whole trainings" in process.stderr


def test_no_trainings_is_an_error(tmp_path):
    process = bench(tmp_path / "out", "--minutes", "0")
    assert (process.returncode, process.stderr.count("\n")) == (1, 1)
    assert "nothing to score" in process.stderr


def test_published_pages_are_current():
    results = json.loads(tables.RESULTS.read_text())
    assert tables.PAGE.read_text() == tables.page(results, provenance.of_detectors()), "./dev docs"
    assert tables.REPORT.read_text() == tables.report(results, provenance.of_detectors()), "./dev docs"
    protocol = results["protocol"]
    for path in (tables.PAGE, tables.REPORT):  # the prose around the tables
        prose = " ".join(path.read_text().split())
        for told in ("{horizon} steps", "{long_horizon} "):
            assert told.format(**protocol) in prose
    assert "plus {aftermath} steps".format(**protocol) in prose
    assert "The first {first_step} steps are not scored".format(**protocol) in prose
    assert tables.RESULTS.stat().st_size < 300_000
    # Seeds that an earlier choice of thresholds may have seen are not among them.
    seeds = {seed for recipe in results["recipes"] for seed in recipe["seeds"]}
    assert seeds
    assert min(seeds) >= recipes.FIRST_SEED


def test_published_results_match_the_kept_trainings():
    """But for the intervals, which take a thousand draws each."""
    found = comparison.completed([one for one in provenance.stored() if provenance.is_made_alike(one)])
    assert found
    results = json.loads(tables.RESULTS.read_text())
    assert results["made"]["trainings"] == len(found)
    assert results["recipes"] == [comparison.about(each, found) for each in recipes.RECIPES]
    for name, of in results["shipped"].items():
        whole = scoring.pooled(comparison.tallies(found, name, "1.0").values())
        assert (of["all"]["hits"], of["all"]["events"], of["all"]["alarms"]) == (whole.hits, whole.events, whole.alarms)
        calm = scoring.quiet(comparison.controls(found, name, "1.0"), [name])
        assert (of["all"]["false"], of["all"]["twin_steps"]) == (calm.alarms, calm.steps)
    assert results["attention_errors"] == attention_errors.results(found)


def test_the_page_of_the_detectors_matches_the_results():
    results = json.loads(tables.RESULTS.read_text())
    rows = re.findall(r"^\| `(\w+)` .*\| (\w+) \|$", (ROOT / "docs" / "detectors.md").read_text(), re.MULTILINE)
    assert len(rows) == 12
    assert sorted(name for name, by in rows if by == "default") == sorted(results["default"])
    assert {by for _, by in rows} == {"default", "experimental"}


def test_results_of_other_detectors_are_marked_stale():
    results = json.loads(tables.RESULTS.read_text())
    for text in (tables.page, tables.report):
        assert "Stale: " in text(results, "of other detectors")
    one = {"recipe": "stable-net", "made": {"detectors": provenance.of_detectors(), "training": ""}}
    assert not provenance.is_stale(one)
    assert provenance.is_stale({"made": {"detectors": "0123456789abcdef"}})
    assert not provenance.is_made_alike(one)
    one = {"lines": {"sample": 1}, "made": {"detectors": provenance.of_detectors(), "judges": provenance.of_judges()}}
    assert not provenance.is_outdated(one)
    one["made"]["judges"] = "0123456789abcdef"
    assert provenance.is_outdated(one)
    assert not provenance.is_outdated(one | {"lines": {"sample": 0}})
    results["made"]["judges"] = {provenance.of_judges(): 3, "": 4, "0123456789abcdef": 3}
    assert "In 7 of them the attention errors" in re.sub(r"\s+", " ", tables.page(results, results["detectors"]))
    results["made"]["judges"] = {provenance.of_judges(): 3}
    assert "the attention errors" not in re.sub(r"\s+", " ", tables.page(results, results["detectors"]))


def test_comments_and_line_breaks_do_not_change_the_hash_of_detectors():
    source = "int a = 1;  // one\n// two\nint b;\n"
    assert provenance.without_comments(source) == provenance.without_comments("int a = 1; int b;\n")
    assert provenance.without_comments(source) != provenance.without_comments("int a = 2; int b;\n")


def test_comments_and_docstrings_do_not_change_the_hash_of_a_training():
    one = 'def f(a):\n    """Old."""\n    return f"{a} # x"  # why\n'
    other = '"""New."""\n# a comment\ndef f(a):\n    """Other."""\n    return f"{a} # x"\n'
    assert provenance.python_code(one).strip() == provenance.python_code(other).strip()
    assert "# x" in provenance.python_code(one)
    assert provenance.python_code(one) != provenance.python_code(one.replace("# x", "# y"))
    kept = "a = [\n    'not a docstring',\n]\n"
    assert "not a docstring" in provenance.python_code(kept)


def kept_training(recipe, seed, day=1, looks=100):
    return {"recipe": recipe, "seed": seed, "day": day, "last_step": 800, "lines": {"tensor": looks}}


def test_trainings_of_different_days_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "FOLDER", tmp_path / "trainings")
    first, second = (kept_training("stable-net", seed) for seed in (1000, 1001))
    assert provenance.keep([first, second]) == []
    assert provenance.keep([second | {"day": 2}, kept_training("adam-net", 1000, day=2)]) == []
    assert [(one["recipe"], one["seed"], one["day"]) for one in provenance.stored()] == [
        ("stable-net", 1000, 1), ("stable-net", 1001, 2), ("adam-net", 1000, 2),
    ]  # fmt: skip


def test_a_training_with_lost_snapshots_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "FOLDER", tmp_path / "trainings")
    provenance.keep([kept_training("stable-net", 1000), kept_training("stable-net", 1001, looks=90)])
    again = kept_training("stable-net", 1001, day=2, looks=80)
    assert provenance.keep([again]) == [again]
    assert [(one["seed"], one["day"]) for one in provenance.stored()] == [(1000, 1), (1001, 1)]
