"""foreshock compare as a process: its figures against scipy and numpy, its inputs, its refusals, its memory."""

import json
import math
import os
import pathlib
import signal
import struct
import subprocess

import numpy as np
import pytest
import report_page
import stored_tensors as stored
from scraping import wait_until

pytestmark = pytest.mark.quick

FORMATS = {"BF16": stored.bf16, "F16": stored.fp16, "F32": stored.fp32, "F64": stored.fp64}
# Both sides sum up to 10^5 terms of one sign, pairwise or in eight chains: 10^5 / 8 * 2^-53 = 1.4e-12 is the worst
# case, of which roundings that differ in sign leave a hundredth.
CLOSE = 1e-12


def compare(foreshock, *words, **more):
    return subprocess.run(
        [foreshock, "compare", *map(str, words)], capture_output=True, text=True, timeout=120, check=False, **more
    )


def figures(foreshock, tmp_path, *words):
    path = tmp_path / "figures.json"
    done = compare(foreshock, *words, "--json", path)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


def weights(seed, shape=(300, 70)):
    return np.random.default_rng(seed).normal(0, 0.02, shape)


def by_name(pair):
    return {tensor["name"]: tensor for tensor in pair["tensors"]}


def assert_figures(entry, a, b, exact):
    from scipy.stats import wasserstein_distance  # takes seconds

    a, b = a.ravel(), b.ravel()
    finite = np.isfinite(a) & np.isfinite(b)
    truth = wasserstein_distance(a[finite], b[finite])
    distances = np.abs(b[finite] - a[finite])
    assert entry["w1_low"] <= truth * (1 + CLOSE)
    assert entry["w1_high"] >= truth * (1 - CLOSE)
    if exact:
        assert entry["w1"] == pytest.approx(truth, rel=CLOSE)
        assert entry["w1_high"] - entry["w1_low"] <= CLOSE * truth
    assert entry["w1_low"] <= entry["w1"] <= entry["w1_high"]
    assert entry["mean_abs"] == pytest.approx(distances.mean(), rel=CLOSE)
    assert entry["max_abs"] == distances.max()
    assert entry["relative_l2"] == pytest.approx(math.sqrt((distances**2).sum() / (a[finite] ** 2).sum()), rel=CLOSE)
    assert entry["w1_over_mean_abs"] == pytest.approx(entry["w1"] / entry["mean_abs"], rel=CLOSE)
    assert entry["elements"] == a.size
    assert entry["non_finite_a"] == (~np.isfinite(a)).sum()
    assert entry["non_finite_b"] == (~np.isfinite(b)).sum()


@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("second", FORMATS)
def test_figures_match_scipy_and_numpy(foreshock, tmp_path, first, second):
    left = {"w": FORMATS[first](weights(1)), "u": FORMATS[first](weights(2, (999,)) + 1)}
    right = {"w": FORMATS[second](weights(1) * 1.01 + 1e-3), "u": FORMATS[second](weights(3, (999,)) + 1)}
    a, b = stored.write(tmp_path / "a.safetensors", left), stored.write(tmp_path / "b.safetensors", right)
    pair = figures(foreshock, tmp_path, a, b)["pairs"][0]
    exact = first in ("BF16", "F16") and second in ("BF16", "F16")
    values = {name: (stored.read_back(left[name]), stored.read_back(right[name])) for name in left}
    for name, tensor in by_name(pair).items():
        assert (tensor["type_a"], tensor["type_b"]) == (first, second)
        assert_figures(tensor, *values[name], exact)
    pooled = [np.concatenate([values[name][side].ravel() for name in left]) for side in (0, 1)]
    assert_figures(pair["pooled"], *pooled, exact)


@pytest.mark.parametrize("format_of", FORMATS)
def test_counts_and_leaves_out_non_finite_values(foreshock, tmp_path, format_of):
    a, b = weights(1), weights(2)
    a[0, :3], b[0, 2:7], b[5, 5] = [np.nan, np.inf, -np.inf], np.nan, -np.inf
    left, right = FORMATS[format_of](a), FORMATS[format_of](b)
    paths = [stored.write(tmp_path / name, {"w": t}) for name, t in (("a.safetensors", left), ("b.safetensors", right))]
    done = compare(foreshock, *paths)
    assert "(9 not finite)" in done.stdout
    pair = figures(foreshock, tmp_path, *paths)["pairs"][0]
    exact = format_of in ("BF16", "F16")
    assert_figures(pair["pooled"], stored.read_back(left), stored.read_back(right), exact)


# W1 of all that is finite here and of all that is finite there would be of other values than mean |d|.
@pytest.mark.parametrize("format_of", FORMATS)
def test_values_without_a_partner_are_left_out(foreshock, tmp_path, format_of):
    a = np.arange(1, 101, dtype=float).reshape(10, 10)
    b = a + 0.5
    b[5:] = np.nan
    a[0], b[0] = -0.0, np.inf
    whole = {"half": (a, b), "none": (a, np.full_like(a, np.nan)), "all": (weights(1), weights(2))}
    sides = [{name: FORMATS[format_of](pair[side]) for name, pair in whole.items()} for side in (0, 1)]
    paths = [stored.write(tmp_path / f"{name}.safetensors", side) for name, side in zip("ab", sides, strict=True)]
    for order in (1, -1):
        pair = figures(foreshock, tmp_path, *paths[::order])["pairs"][0]
        tensors = by_name(pair)
        assert tensors["half"]["w1"] == tensors["half"]["mean_abs"] == 0.5
        assert tensors["half"]["w1_over_mean_abs"] == 1
        figures_of_none = {k: tensors["none"][k] for k in ("w1", "w1_low", "w1_high", "w1_noise_floor", "mean_abs")}
        assert set(figures_of_none.values()) == {None}, figures_of_none
        kept = [np.concatenate([stored.read_back(t).ravel() for t in side.values()]) for side in sides[::order]]
        assert_figures(pair["pooled"], *kept, exact=format_of in ("BF16", "F16"))


def test_non_finite_tensors_are_always_listed(foreshock, tmp_path):
    a = {f"layers.{i}.w": stored.fp32(weights(i, (8, 8))) for i in range(30)}
    b = {name: stored.fp32(weights(99, (8, 8))) for name in a}
    b["layers.7.w"] = stored.fp32(np.full((8, 8), np.nan))
    paths = [stored.write(tmp_path / name, tensors) for name, tensors in (("a", a), ("b", b))]
    done = compare(foreshock, *paths)
    assert (
        f"values that are not finite, in {paths[0]} and in {paths[1]} (1):\n  layers.7.w  0 and 64 of 64\n"
        in done.stdout
    )


def test_writes_through_a_link_to_stdout_without_replacing_it(foreshock, tmp_path):
    paths = [stored.write(tmp_path / name, {"w": stored.fp32(weights(seed))}) for name, seed in (("a", 1), ("b", 2))]
    link, printed = tmp_path / "link", tmp_path / "printed"
    link.symlink_to("/dev/stdout")
    with printed.open("w") as out:
        subprocess.run([foreshock, "compare", *paths, "--json", link], stdout=out, timeout=120, check=True)
    assert link.is_symlink()
    table, _, rest = printed.read_text().partition("\n{\n")
    assert table.startswith("different: relative L2 ")
    assert json.loads("{" + rest)["schema"] == 1


def test_shards_and_directories_give_the_same_result(foreshock, tmp_path):
    tensors = {f"layers.{i}.w": stored.bf16(weights(i)) for i in range(12)}
    moved = {name: stored.bf16(stored.read_back(tensor) + 1e-3) for name, tensor in tensors.items()}
    names = list(tensors)
    whole, other = (stored.write(tmp_path / f"{n}.safetensors", t) for n, t in (("a", tensors), ("b", moved)))
    index = stored.write_sharded(tmp_path / "sharded", [{n: moved[n] for n in part} for part in (names[:5], names[5:])])
    loose = tmp_path / "loose"
    loose.mkdir()
    for part in (names[:7], names[7:]):
        stored.write(loose / f"{part[0]}.safetensors", {n: moved[n] for n in part})
    expected = figures(foreshock, tmp_path, whole, other)["pairs"][0]
    assert [t["name"] for t in expected["tensors"]] == names  # 2 before 10
    for path in (index, index.parent, loose):
        found = figures(foreshock, tmp_path, whole, path)["pairs"][0]
        assert (found["tensors"], found["pooled"]) == (expected["tensors"], expected["pooled"])


def test_pairs_stand_side_by_side(foreshock, tmp_path):
    noise = {"a": 0, "kernel": 1e-5, "precision": 1e-3, "seed": None}
    paths = {}
    for name, size in noise.items():
        values = (
            weights(9) if size is None else weights(1) + (size and np.random.default_rng(2).normal(0, size, (300, 70)))
        )
        paths[name] = stored.write(tmp_path / f"{name}.safetensors", {"w": stored.fp32(values)})
    precision = ("--pair", "precision", paths["a"], paths["precision"])
    seed = ("--pair", "seed", paths["seed"], paths["a"])
    study = figures(foreshock, tmp_path, paths["a"], paths["kernel"], *precision, *seed)
    assert [pair["name"] for pair in study["pairs"]] == [str(paths["kernel"]), "precision", "seed"]
    sides = [[study["checkpoints"][pair[side]] for side in "ab"] for pair in study["pairs"]]
    expected = [("a", "kernel"), ("a", "precision"), ("seed", "a")]
    assert sides == [[str(paths[name]) for name in names] for names in expected]
    moved = [pair["pooled"]["mean_abs"] for pair in study["pairs"]]
    assert moved[0] < moved[1] < moved[2]
    # Two draws of one law are about a noise floor apart; the paired figure knows that they have nothing in common.
    seed = study["pairs"][2]["pooled"]
    assert 0.2 < seed["w1"] / seed["w1_noise_floor"] < 4
    assert seed["relative_l2"] == pytest.approx(math.sqrt(2), rel=0.05)


def test_the_same_bytes_from_any_number_of_threads(foreshock, tmp_path):
    # Three units of work and a rest: 2^24 values each.
    rng = np.random.default_rng(1)
    patterns = rng.integers(0x3C00, 0x3D00, size=3 * 2**24 + 12345, dtype=np.uint16)
    paths = []
    for name in ("a", "b"):
        paths.append(stored.write(tmp_path / name, {"w": ("BF16", patterns.shape, patterns.tobytes())}))
        patterns = np.roll(patterns, 1)
    texts = set()
    for threads in (1, 2, 5):
        assert compare(foreshock, *paths, "--threads", threads, "--json", tmp_path / "out.json").returncode == 0
        texts.add((tmp_path / "out.json").read_bytes())
    assert len(texts) == 1
    assert json.loads(texts.pop())["pairs"][0]["pooled"]["w1"] == 0  # rolled: the same distribution


def test_the_first_line_says_identical_or_where_it_differs(foreshock, tmp_path):
    a = {"w": stored.bf16(weights(1)), "u": stored.fp32(weights(2)), "zero": stored.fp32(np.zeros(4))}
    other_sign = a | {"zero": stored.fp32(-np.zeros(4))}  # equal values, other bits
    changed = a | {"u": stored.fp32(weights(2) * 1.5)}
    left, same, minus, right = (
        stored.write(tmp_path / name, tensors)
        for name, tensors in (("a", a), ("same", a), ("minus", other_sign), ("b", changed))
    )
    first_line = [compare(foreshock, left, path).stdout.splitlines()[0] for path in (same, minus, right)]
    assert first_line[0] == "identical bit for bit (3 tensors)"
    assert first_line[1].startswith("different: relative L2 0,")
    assert first_line[2].endswith("most in u (0.5)")


def test_names_tensors_that_cannot_be_compared(foreshock, tmp_path):
    ids = ("I64", (4,), bytes(32))
    a = {"w": stored.bf16(weights(1)), "bias": stored.fp32(weights(2)), "shape": stored.fp32(weights(3)), "ids": ids}
    b = {"w": stored.fp32(weights(1)), "gate": stored.fp32(weights(2)), "shape": stored.fp32(weights(3).T), "ids": ids}
    paths = [stored.write(tmp_path / name, tensors) for name, tensors in (("a", a), ("b", b))]
    done = compare(foreshock, *paths)
    assert done.returncode == 0
    for line in ("bias", "gate", "shape  [300, 70] and [70, 300]", "ids  I64 and I64", "w  BF16 and F32"):
        assert f"\n  {line}\n" in done.stdout, line
    pair = figures(foreshock, tmp_path, *paths)["pairs"][0]
    assert (pair["only_in_a"], pair["only_in_b"]) == (["bias"], ["gate"])
    assert [entry["name"] for entry in pair["shapes_differ"]] == ["shape"]
    assert [entry["name"] for entry in pair["types_differ"]] == ["w"]
    assert [entry["name"] for entry in pair["not_compared"]] == ["ids"]


def entry(begin, end, kind="F32", shape=None):
    return {"dtype": kind, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def hostile_files(directory):
    """name -> (path, what the line must say)."""
    good = stored.write(directory / "good.safetensors", {"w": stored.fp32(weights(1))})

    def raw(name, header, data=bytes(64)):
        return stored.write_raw(directory / name, header if isinstance(header, str) else json.dumps(header), data)

    (directory / "short").write_bytes(good.read_bytes()[:-1])
    (directory / "tiny").write_bytes(b"1234567")
    (directory / "huge_header").write_bytes(struct.pack("<Q", 2**63) + b"{}")
    (directory / "empty").mkdir()
    os.mkfifo(directory / "pipe")
    index = stored.write_sharded(directory / "gone", [{"w": stored.fp32(weights(1))}, {"v": stored.fp32(weights(1))}])
    (index.parent / "model-00002-of-00002.safetensors").unlink()
    outside = directory / "outside.safetensors.index.json"
    outside.write_text(json.dumps({"weight_map": {"w": "../good.safetensors"}}))
    lacking = directory / "lacking.safetensors.index.json"
    lacking.write_text(json.dumps({"weight_map": {"v": good.name}}))
    twice = f'{{"w":{json.dumps(entry(0, 64))},"w":{json.dumps(entry(0, 64))}}}'
    return {
        "truncated": (directory / "short", "truncated"),
        "too short for a header": (directory / "tiny", "no header"),
        "huge header": (directory / "huge_header", "header would have"),
        "no JSON": (raw("no_json", "{"), "no readable header"),
        "deep JSON": (raw("deep", '{"w":' + "[" * 100_000 + "]" * 100_000 + "}"), "no readable header"),
        "overlap": (raw("overlap", {"v": entry(0, 40), "w": entry(32, 64)}), "'w' begins inside another"),
        "wrong type": (raw("type", {"w": entry(0, 64, "F16", [16])}), "'w' has a shape that does not fit"),
        "overflowing shape": (raw("shape", {"w": entry(0, 64, "F32", [2**62, 16])}), "does not fit"),
        "negative offset": (raw("negative", {"w": entry(-64, 0)}), "ill-formed offsets"),
        "backwards": (raw("backwards", {"w": entry(64, 0, "F32", [16])}), "ends before it begins"),
        "named twice": (raw("twice", twice), "twice"),
        "name of several lines": (raw("name", {"w\nfatal: \x1b[31m": entry(0, 640)}), "'w?fatal: ?[31m'"),
        "missing": (directory / "nowhere", "nowhere: No such file"),
        "pipe": (directory / "pipe", "not a regular file"),
        "empty directory": (directory / "empty", "no .safetensors file"),
        "shard gone": (index.parent, "model-00002-of-00002.safetensors: No such file"),
        "index outside": (outside, "no file beside the index"),
        "index of another": (lacking, "'v' in good.safetensors, which lacks it"),
    }


def test_hostile_files_are_named_in_one_line(foreshock, tmp_path):
    good = stored.write(tmp_path / "fine.safetensors", {"w": stored.fp32(weights(1))})
    for name, (path, says) in hostile_files(tmp_path).items():
        for words in ((good, path), (path, good)):
            done = compare(foreshock, *words)
            assert done.returncode == 2, name
            assert done.stdout == "", name
            assert done.stderr.startswith("foreshock compare: "), name
            assert done.stderr.count("\n") == 1, name
            assert says in done.stderr, (name, done.stderr)
            assert str(path) in done.stderr, (name, done.stderr)


@pytest.mark.parametrize("words", [
    (), ("a",), ("a", "b", "--pear"), ("a", "b", "--threads", "0"), ("--pair", "x", "a"), ("a", "b", "--json"),
    ("a", "b", "--top", "many"), ("a", "b", "--report", "/proc/none/out.html"),
])  # fmt: skip
def test_wrong_use_gets_one_line_and_status_two(foreshock, words):
    done = compare(foreshock, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("foreshock compare: ")
    assert done.stderr.count("\n") == 1


def test_checkpoints_with_nothing_in_common(foreshock, tmp_path):
    paths = [stored.write(tmp_path / name, {name: stored.fp32(weights(1))}) for name in ("a", "b")]
    done = compare(foreshock, *paths)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no tensor of one name and shape in common" in done.stderr


def test_files_larger_than_memory(foreshock, base):
    """Two files of 1 GiB, sparse on tmpfs, where the process may have 256 MiB of addresses, whatever it does."""
    paths = [stored.write_sparse(base / name, 2**29) for name in ("a", "b")]
    out = base / "out.json"
    shell = ["sh", "-c", 'ulimit -v 262144 && exec "$@"', "sh"]
    done = subprocess.run(
        [*shell, foreshock, "compare", *map(str, paths), "--threads", "2", "--json", str(out)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pooled = json.loads(out.read_text())["pairs"][0]["pooled"]
    assert (pooled["elements"], pooled["w1"], pooled["mean_abs"], pooled["relative_l2"]) == (2**29, 0, 0, None)


def wait_until_it_reads(process):
    """Until the headers are long behind it, and most of the tensors before it."""
    counters = pathlib.Path(f"/proc/{process.pid}/io")
    wait_until(lambda: int(counters.read_text().split()[1]) > 2**26, of=process)  # rchar


def test_a_file_that_shrinks_meanwhile_is_named(foreshock, base):
    paths = [stored.write_sparse(base / name, 2**32) for name in ("a", "b")]
    process = subprocess.Popen(
        [foreshock, "compare", *map(str, paths)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until_it_reads(process)
    os.truncate(paths[1], 4096)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert error == f"foreshock compare: cannot read {paths[1]} any more: it was changed, or its disk fails\n"


def test_an_interrupt_stops_at_once_and_leaves_no_file(foreshock, base):
    paths = [stored.write_sparse(base / name, 2**32) for name in ("a", "b")]
    process = subprocess.Popen([foreshock, "compare", *map(str, paths), "--json", str(base / "out.json")])
    wait_until_it_reads(process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == -signal.SIGINT
    assert sorted(path.name for path in base.iterdir()) == ["a", "b"]


@pytest.fixture(scope="module")
def page(foreshock, tmp_path_factory):
    directory = tmp_path_factory.mktemp("page")
    paths = []
    for number in range(3):
        tensors = {f"layers.{i}.w": stored.bf16(weights(i) * (1 + number / 100)) for i in range(20)}
        tensors["</script><b>"] = stored.fp32(weights(7))
        paths.append(stored.write(directory / f"{number}.safetensors", tensors))
    path = directory / "report.html"
    assert compare(foreshock, *paths, "--report", path).returncode == 0
    return path


def test_the_page_asks_for_nothing_from_outside(page):
    report_page.assert_self_contained(page)
    assert "</script><b>" not in page.read_text()


def test_the_page_opens_without_a_complaint(page, tmp_path):
    dom = report_page.opened(page, tmp_path)
    assert dom.count("<canvas") == 2
    assert dom.count("<tr>") == (1 + 2) + (1 + 2 * 21)  # pooled, and every tensor of both pairs
    assert "&lt;/script&gt;&lt;b&gt;" in dom
