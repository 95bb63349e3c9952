"""What records, checkpoints and names of files say is shown, and never obeyed: no command gives a terminal a control
character, or one that hides or reorders its neighbours. JSON keeps the values."""

import json
import pathlib
import struct
import subprocess
import unicodedata

import pytest

pytestmark = pytest.mark.quick

# Clears the screen, twice; turns the direction; has no width; begins a line anew; is a tag.
HOSTILE = "a\x1b[2J\x9b2J\u202eb\u200bc\r\U000e0041"


def obeyed(text: str) -> set[str]:
    """Characters of `text` that a terminal does not only show."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c != "\n"}


def record_lines() -> list[dict]:
    """A biased layer, then a spike of the loss. All texts are hostile."""
    one = {"schema": 1, "run": HOSTILE}
    lines = [one | {"type": "run", "state": "started", "rank": 0, "time": 1.7e9, "world_size": 1, "host": HOSTILE,
                    "executable": HOSTILE, "framework": HOSTILE, "foreshock_version": HOSTILE}]  # fmt: skip
    of = one | {"rank": 0}
    for step in range(1, 421):
        lines.append(of | {"type": "step", "step": step, "time": 1.7e9 + step, "loss_source": HOSTILE,
                           "loss": 9.0 if 401 <= step <= 403 else 1 + 1e-4 * (step % 7)})  # fmt: skip
        if step % 2 == 0:
            names = {"layer": HOSTILE, "layer_name": HOSTILE, "op": HOSTILE}
            values = {"pass": "forward", "bias_ulp": step // 200 * 9.0, "fused_ratio": 1.0}
            lines.append(of | {"type": "sample", "step": step} | names | values)
    event, texts = (
        of | {"type": "event", "layer": HOSTILE},
        dict.fromkeys(("text", "action", "layer", "tensor"), HOSTILE),
    )
    lines += [
        event | {"step": 390, "event": "precursor", "detector": "bias", "level": HOSTILE},
        event | {"step": 391, "event": HOSTILE, "detector": HOSTILE, "level": "warn"},
        event | {"step": 395, "event": "nonfinite_gradient"},
        event | {"step": 401, "event": "loss_spike", "value": 9.0},
        one | {"type": "tensor", "step": 384, "tensor": HOSTILE, "layer": HOSTILE, "scope": "node", "dtype": "fp32"},
        one | {"type": "finding", "step": 391, "state": "began", "finding": HOSTILE, "headline": HOSTILE} | texts,
        one | {"type": "verdict", "state": HOSTILE, "verdict": HOSTILE},
    ]
    return lines


@pytest.fixture
def said(foreshock, tmp_path):
    """said(*words): both streams of a command in a folder without other files."""

    def run(*words: str) -> tuple[str, str]:
        done = subprocess.run([foreshock, *words], capture_output=True, cwd=tmp_path, timeout=60, check=False)
        out, err = done.stdout.decode(), done.stderr.decode()
        assert out or err, words
        return out, err

    return run


@pytest.mark.parametrize("words", [
    ("report",), ("report", "--markdown"), ("report", "--json"), ("detect",), ("detect", "--json"),
    ("export", "--csv", "tables"), ("merge", "-o", "job.jsonl"), ("detect", "--scores", "scores.csv"),
], ids=" ".join)  # fmt: skip
def test_records(said, tmp_path, words):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in record_lines()))
    out, err = said(*words, "a.jsonl")
    assert obeyed(out + err) == set(), (out, err)
    if "--json" in words:
        assert json.dumps(HOSTILE) in json.dumps(json.loads(out)), "the value stays what it was"
    tables = [*(tmp_path / "tables").glob("*.csv"), *tmp_path.glob("*.csv")]
    assert bool(tables) == any("csv" in word for word in words)
    for table in tables:
        assert obeyed(table.read_text()) == set(), table


def write_checkpoint(path: pathlib.Path, number: int) -> None:
    """Of four tensors of one value, one of them with a hostile name."""
    header, data = {}, b""
    for name in (HOSTILE, *"qkv"):
        header[name] = {"dtype": "F32", "shape": [1, 1, 1, 1], "data_offsets": [len(data), len(data) + 4]}
        data += struct.pack("<f", number)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_checkpoints_and_names_of_files(said, tmp_path):
    names = [f"{HOSTILE}{number}.safetensors" for number in (1, 2)]
    for number, name in enumerate(names, 1):
        write_checkpoint(tmp_path / name, number)
    (tmp_path / HOSTILE).write_text("no record")
    for words in (("compare", *names), ("compare", "--json", *names), ("judge", names[0]), ("report", HOSTILE),
                  ("detect", HOSTILE), ("merge", HOSTILE, HOSTILE, "-o", HOSTILE), ("run", "--record", HOSTILE),
                  ("compare", HOSTILE, HOSTILE), ("judge", HOSTILE), ("status", "--run-id", HOSTILE), (HOSTILE,),
                  ("run", HOSTILE), ("report", f"--{HOSTILE}"), ("export", "--csv", HOSTILE, HOSTILE)):  # fmt: skip
        out, err = said(*words)
        assert obeyed(out + err) == set(), (words, out, err)
