"""--save-flagged: slices of the planted layer are kept, judged again bit for bit, and run again with torch."""

import concurrent.futures
import json
import re

import pytest
from flagged import Kept, judge, rerun, train
from monitored import PYTHON, unwrapped

GUILTY = "001"


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> dict[str, Kept]:
    base = tmp_path_factory.mktemp("flagged")
    with concurrent.futures.ThreadPoolExecutor(2) as two:
        started = {plant: two.submit(train, base / plant, plant) for plant in ("head", "bias", "keys", "nothing")}
    return {plant: run.result() for plant, run in started.items()}


def test_slices_are_kept_of_the_planted_layer_only(kept):
    for plant, reason in (("head", "deviation_ratio"), ("bias", "bias")):
        files = kept[plant].files()
        assert files
        # A wrong output also reaches the backward call of the same layer.
        assert all(re.search(rf"\.(forward|backward)\.{GUILTY}\.", path.name) for path in files), files
        assert kept[plant].files(f".{reason}.")
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
        assert kept[plant].folder.stat().st_mode & 0o777 == 0o700


def test_a_sound_kernel_leaves_nothing(kept):
    assert kept["nothing"].run.summary["flagged"]["saved"] == {}
    assert list(kept["nothing"].folder.iterdir()) == []
    assert "flagged" not in kept["nothing"].run.stderr


def test_the_summary_counts_and_says_where_they_are(kept):
    for one in (kept["head"], kept["bias"]):
        flagged = one.run.summary["flagged"]
        assert sum(flagged["saved"].values()) == len(one.files())
        assert flagged["directory"] == str(one.folder)
        assert flagged["problem"] == ""
        assert set(flagged["dropped"]) <= {"alike"}
        line = f"foreshock judge {one.folder}/*.slice.safetensors"
        assert f"{len(one.files())} slice" in unwrapped(one.run.stderr)
        assert line in unwrapped(one.run.stderr)


def test_each_layer_has_one_ordinary_slice_as_control(kept):
    # One head of four errs, so the others' slices are ordinary.
    for name in ("forward", "backward"):
        assert len(kept["head"].files(f".{name}.{GUILTY}.control.")) == 1
    assert len(kept["head"].files(".control.")) == 2
    assert len(kept["head"].files()) > 4


def test_the_judgement_is_reproduced_bit_for_bit(kept):
    for plant in ("head", "bias", "keys"):
        done = judge(*kept[plant].files())
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("reproduced bit for bit") == len(kept[plant].files())
        assert "stored:" not in done.stdout


def test_slices_of_key_positions_are_kept_and_judged_again(kept):
    files = kept["keys"].files(".deviation_ratio.")
    assert files
    assert all(f".backward.{GUILTY}." in path.name for path in kept["keys"].files())
    samples = {line["ticket"]: line for line in kept["keys"].run.of("sample") if line["tensor"] == "grad_key"}
    for path in files:
        ticket = int(path.name.removesuffix(".slice.safetensors").rsplit("-", 1)[1])
        lines = judge(path).stdout.splitlines()
        words = [line.split() for line in lines[lines.index("  grad_key") : lines.index("  grad_value")]]
        told = {line[0]: line[1] for line in words if line[2:] == ["as", "stored"]}
        for name in ("fused_ratio", "conservation_ratio"):
            assert float(told[name]) == samples[ticket][name], (path, name)
        assert float(told["fused_ratio"]) > 6
    done = judge("--rerun", "--python", PYTHON, files[0])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), "only slices of rows can be run again"


def test_it_is_the_one_of_the_record(kept):
    samples = {line["ticket"]: line for line in kept["head"].run.of("sample")}
    for path in kept["head"].files():
        ticket = int(path.name.removesuffix(".slice.safetensors").rsplit("-", 1)[1])
        words = [line.split() for line in judge(path).stdout.splitlines()]
        told = {line[0]: line[1] for line in words if len(line) == 4 and line[2:] == ["as", "stored"]}
        for name in ("relative_error_max", "error_norm", "plain_error_norm", "bias_error_sum", "bias_ulp_sum"):
            assert float(told[name]) == samples[ticket][name], (path, name)


# The wrong kernel lived in the training's process only: torch's own is sound on the same inputs, and gives the very
# bits of a slice on which nothing was planted.
def test_run_again_the_planted_error_does_not_come_back(kept):
    for report in rerun(*kept["head"].files(f".forward.{GUILTY}.deviation_ratio.")):
        assert report["verdict"] == "does_not_come_back", report
        assert report["results"] == 1
        assert report["stored_ratio"] > 2 > report["ratio"]
    for report in rerun(*kept["bias"].files(".bias.")):
        assert report["verdict"] in ("does_not_come_back", "another_result"), report
        assert report["stored_bias_ulp"] > report["bias_ulp"] + 0.05
    (control,) = rerun(*kept["head"].files(f".forward.{GUILTY}.control."))
    assert control["verdict"] == "repeats", control
    assert control["as_stored"]


def test_a_changed_file_is_told(kept, tmp_path):
    whole = kept["head"].files(".deviation_ratio.")[0].read_bytes()
    header = int.from_bytes(whole[:8], "little")
    for name, at in (("data", len(whole) - 5), ("figure", whole.index(b'"figure.error_norm":"') + 25)):
        assert name != "figure" or at < header
        changed = bytearray(whole)
        changed[at] = ord("1") if changed[at] != ord("1") else ord("2")
        path = tmp_path / f"{name}.slice.safetensors"
        path.write_bytes(changed)
        done = judge(path)
        assert done.returncode == 1, done.stdout
        assert "the file was changed after it was written" in done.stdout


def test_another_reference_version_is_told(kept, tmp_path):
    """As an older foreshock would have written it: another version, and another last bit of the reference."""
    whole = kept["head"].files(".deviation_ratio.")[0].read_bytes()
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    data = bytearray(whole[8 + int.from_bytes(whole[:8], "little") :])
    header["__metadata__"] |= {"reference_version": "0", "checksum": "0" * 16}
    data[header["reference_out"]["data_offsets"][0]] ^= 1
    text = json.dumps(header, separators=(",", ":")).encode()
    file = len(text).to_bytes(8, "little") + text + bytes(data)
    digest = 0xCBF29CE484222325
    for byte in file:
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    path = tmp_path / "older.slice.safetensors"
    path.write_bytes(file.replace(b'"checksum":"' + b"0" * 16, f'"checksum":"{digest:016x}'.encode()))
    done = judge(path)
    assert done.returncode == 1
    assert "not reproduced: it was judged by reference version 0, this foreshock has 2" in done.stdout
    assert " 1 with other bits" in done.stdout


def broken_files(whole: bytes) -> dict[str, bytes]:
    length = int.from_bytes(whole[:8], "little")

    def with_header(old: bytes, new: bytes) -> bytes:
        text = whole[8 : 8 + length].replace(old, new)
        assert text != whole[8 : 8 + length]
        return len(text).to_bytes(8, "little") + text + whole[8 + length :]

    return {
        "cut": whole[:-10],
        "empty": b"",
        "schema": with_header(b'"schema":"1"', b'"schema":"2"'),
        "scale": with_header(b'"scale":"', b'"scale":"x'),
        "rows": with_header(b'"shape":[16]', b'"shape":[17]'),
        "type": with_header(b'"U32"', b'"F16"'),
        "name": with_header(b'"key_limit"', b'"key_limix"'),
    }


@pytest.mark.long
def test_a_broken_file_gets_one_line_and_status_2(kept, tmp_path):
    for name, content in broken_files(kept["head"].files()[0].read_bytes()).items():
        path = tmp_path / f"{name}.slice.safetensors"
        path.write_bytes(content)
        for options in ((), ("--rerun", "--python", PYTHON)):
            done = judge(*options, path)
            assert done.returncode == 2, (name, options, done.stdout, done.stderr)
            assert done.stderr.count("\n") == 1, (name, options, done.stderr)
            assert "Traceback" not in done.stderr


def test_wrong_use_gets_one_line(kept, tmp_path):
    path = kept["head"].files()[0]
    for words in ((path, "--algorithm", "plain"), ("--rerun", "--python"), (tmp_path / "missing",)):
        done = judge(*words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), (words, done.stderr)


def test_other_tools_read_it(kept):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    for path in kept["head"].files():
        tensors = safetensors.load_file(path)
        assert tensors["q"].shape[0] == tensors["position"].shape[0]
