"""foreshock judge --rerun: what repeats, what errs again, what does not come back, told apart."""

import json

import pytest

torch = pytest.importorskip("torch")

import foreshock_rerun  # noqa: E402
import foreshock_slice  # noqa: E402
from stored_slices import slice_of_call, write_slice  # noqa: E402

CALLS = {
    "causal": {},
    "one head": {"heads": 1},
    "not causal": {"causal": False, "queries": 77, "keys": 133},
    "more queries than keys": {"queries": 300, "keys": 100},
    "long": {"queries": 1000, "keys": 1000, "heads": 2},
    "one query": {"queries": 1, "keys": 70, "heads": 16, "causal": False},
    "bool mask": {"mask": "bool"},
    "float mask": {"mask": "float"},
    "fp32": {"dtype": torch.float32},
    "fp16": {"dtype": torch.float16, "d": 24},
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_some_rows_of_a_sound_call_repeat_bit_for_bit(tmp_path, name, backward):
    report = foreshock_rerun.rerun(
        write_slice(tmp_path / "slice", *slice_of_call(**CALLS[name], backward=backward)), times=2
    )
    assert report.verdict == "repeats", report
    assert report.whole_call
    assert report.as_stored
    assert report.ratio == report.stored_ratio < 2


def scaled(factor, **call):
    arrays, facts = slice_of_call(**call)
    name = "dq" if call.get("backward") else "out"
    arrays[name] = (arrays[name].float() * factor).to(arrays[name].dtype)
    return arrays, facts


@pytest.mark.parametrize("backward", [False, True])
def test_a_planted_error_does_not_repeat(tmp_path, backward):
    report = foreshock_rerun.rerun(write_slice(tmp_path / "slice", *scaled(1.125, backward=backward)))
    assert report.verdict == "does_not_come_back", report
    assert report.results == 1
    assert report.stored_ratio > 3 > report.ratio


@pytest.mark.parametrize("name", ["mask", "lse", "dout", "dq"])
def test_an_array_of_another_shape_is_refused(tmp_path, name):
    arrays, facts = slice_of_call(mask="bool", backward=True)
    arrays[name] = arrays[name][:-1].contiguous()
    with pytest.raises(foreshock_slice.SliceError, match=f"{name} has not the shape|reference"):
        foreshock_slice.read_slice(write_slice(tmp_path / "slice", arrays, facts))


def test_a_small_difference_is_another_result(tmp_path):
    arrays, facts = slice_of_call()
    arrays["out"].view(torch.int16)[3, 5] += 1
    report = foreshock_rerun.rerun(write_slice(tmp_path / "slice", arrays, facts))
    assert report.verdict == "another_result"
    assert report.values_unlike_stored == 1


def test_a_planted_nan_does_not_repeat(tmp_path):
    arrays, facts = slice_of_call()
    arrays["out"][2, 2] = float("nan")
    report = foreshock_rerun.rerun(write_slice(tmp_path / "slice", arrays, facts))
    assert report.verdict == "does_not_come_back"
    assert report.stored_ratio == float("inf")


def wrong(query, key, value, **more):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, **more) * 1.125


class Racing:
    def __init__(self):
        self.calls = 0

    def __call__(self, query, key, value, **more):
        self.calls += 1
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, **more)
        out[0, 0, 0, 0] += 2.0**-6 * (self.calls % 2)
        return out


def test_a_kernel_that_errs_repeats_or_errs_again(tmp_path):
    same = write_slice(tmp_path / "same", *scaled(1.125))
    other = write_slice(tmp_path / "other", *scaled(1.25))
    assert foreshock_rerun.rerun(same, function=wrong).verdict == "repeats_beyond"
    assert foreshock_rerun.rerun(other, function=wrong).verdict == "errs_again"


@pytest.mark.parametrize(("fact", "what"), [("soft_cap", "a soft cap"), ("dropout", "dropout")])
def test_inputs_that_no_operation_takes_are_not_run(tmp_path, fact, what):
    arrays, facts = slice_of_call()
    path = write_slice(tmp_path / "slice", arrays, facts | {fact: "0.5"})
    for function in (None, wrong):
        with pytest.raises(foreshock_slice.SliceError, match=what):
            foreshock_rerun.rerun(path, function=function)


def test_the_command_imports_the_function_that_it_is_given(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_kernels.py").write_text("from torch.nn.functional import scaled_dot_product_attention as mine\n")
    path = write_slice(tmp_path / "slice", *slice_of_call())
    monkeypatch.chdir(tmp_path)
    arguments = ["judge", "--rerun", path, "--times", "2", "--device", "cpu", "--function"]
    monkeypatch.setattr("sys.argv", [*arguments, "my_kernels:mine"])
    assert foreshock_rerun.main() == 0
    assert "repeats" in capsys.readouterr().out
    (tmp_path / "my_exit.py").write_text("import sys; sys.exit()\n")
    for missing in ("my_kernels:yours", "my_exit:mine", "my_kernels"):
        monkeypatch.setattr("sys.argv", [*arguments, missing])
        assert foreshock_rerun.main() == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_race_does_not_repeat(tmp_path):
    report = foreshock_rerun.rerun(write_slice(tmp_path / "slice", *slice_of_call()), function=Racing())
    assert (report.verdict, report.results) == ("does_not_repeat", 2)


def test_a_large_call_is_run_with_the_stored_rows_only(tmp_path, monkeypatch):
    monkeypatch.setattr(foreshock_slice, "MOST_MULTIPLICATIONS", 1)
    for call in ({}, {"mask": "bool"}, {"backward": True}):
        report = foreshock_rerun.rerun(write_slice(tmp_path / "slice", *slice_of_call(**call)))
        assert not report.whole_call
        assert report.verdict in ("repeats", "another_result"), report  # other tiles, other bits
        assert report.ratio < 2


@pytest.mark.parametrize(("op", "what"), [
    ("flash_attn::_flash_attn_forward", "--function"),
    ("", "--function"),
    ("_scaled_dot_product_flash_attention", "GPU"),
])  # fmt: skip
def test_an_operation_that_is_not_here_gets_one_line(tmp_path, monkeypatch, capsys, op, what):
    arrays, facts = slice_of_call()
    path = write_slice(tmp_path / "slice", arrays, facts | {"op": op})
    device = [] if what == "GPU" else ["--device", "cpu"]
    monkeypatch.setattr("sys.argv", ["judge", "--rerun", path, *device])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert foreshock_rerun.main() == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert what in told


def test_prints_words_and_json(tmp_path, monkeypatch, capsys):
    paths = [write_slice(tmp_path / name, *scaled(factor)) for name, factor in (("a", 1.125), ("b", 1))]
    monkeypatch.setattr("sys.argv", ["judge", "--rerun", *paths])
    assert foreshock_rerun.main() == 0
    text = capsys.readouterr().out
    assert "does not come back" in text
    assert "repeats: the operation" in text
    monkeypatch.setattr("sys.argv", ["judge", "--rerun", "--json", *paths])
    assert foreshock_rerun.main() == 0
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [report["verdict"] for report in reports] == ["does_not_come_back", "repeats"]


BREAKS = {
    "position": lambda a, f: a["position"].fill_(10_000),
    "negative position": lambda a, f: a["position"].fill_(-1),
    "limit": lambda a, f: a["key_limit"].fill_(10_000),
    "heads": lambda a, f: f.update(heads_in_slice="3"),
    "no heads": lambda a, f: f.update(heads_in_slice="0"),
    "lengths": lambda a, f: f.update(key_length="1"),
    "endless": lambda a, f: f.update(query_length="9" * 30),
    "scale": lambda a, f: f.update(scale="nan"),
    "schema": lambda a, f: f.update(schema="2"),
    "no reference": lambda a, f: a.pop("reference_out"),
    "no noise": lambda a, f: f.pop("figure.plain_error_norm"),
    "width": lambda a, f: a.update(k=a["k"][:, :3]),
    "value": lambda a, f: a.update(v=a["v"][:3]),
    "type": lambda a, f: a.update(k=a["k"].double()),
    "result": lambda a, f: a.update(out=a["out"].float()),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_file_without_a_slice_gets_one_line(tmp_path, monkeypatch, capsys, name):
    arrays, facts = slice_of_call()
    BREAKS[name](arrays, facts)
    monkeypatch.setattr("sys.argv", ["judge", "--rerun", write_slice(tmp_path / "slice", arrays, facts)])
    assert foreshock_rerun.main() == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_cut_file_gets_one_line(tmp_path):
    path = write_slice(tmp_path / "slice", *slice_of_call())
    whole = (tmp_path / "slice").read_bytes()
    for length in (0, 7, 8, 100, len(whole) - 1):
        (tmp_path / "slice").write_bytes(whole[:length])
        with pytest.raises(foreshock_slice.SliceError):
            foreshock_slice.read_slice(path)
