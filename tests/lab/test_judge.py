"""foreshock judge: right kernels pass, each wrong one fails and is told for which inputs."""

import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import foreshock_judge  # noqa: E402
import wrong_kernels  # noqa: E402
from stored_calls import attention_call, write_call  # noqa: E402
from tiers import keep  # noqa: E402

HERE = pathlib.Path(__file__).parent


def judge_file(foreshock, path, *options):
    return subprocess.run(
        [foreshock, "judge", path, *options], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("options", [
    {},
    {"causal": True, "queries": 77, "keys": 133},
    {"heads": 8, "kv_heads": 2, "queries": 33, "keys": 40, "d": 24},
    {"queries": 1, "keys": 200},
    {"dtype": torch.float16, "d": 128},
    {"dtype": torch.float32},
    {"dtype": torch.float64},
    {"keys": 1},
    {"keys": 1, "d": 8, "dtype": torch.float32},
])  # fmt: skip
def test_torch_s_attention_is_within_the_gates(foreshock, tmp_path, options):
    write_call(tmp_path / "call.safetensors", attention_call(**options), causal=options.get("causal", False))
    done = judge_file(foreshock, tmp_path / "call.safetensors")
    assert done.returncode == 0, done.stdout
    for tensor in ("out", "dq", "dk", "dv"):
        assert any(line.split()[:1] == [tensor] and line.endswith("ok") for line in done.stdout.splitlines())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("tensor", ["out", "dq", "dk", "dv"])
def test_a_changed_tensor_is_the_one_that_fails(foreshock, tmp_path, tensor, dtype):
    call = {name: value.detach().clone() for name, value in attention_call(dtype=dtype).items()}
    call[tensor][0, 1] *= 1 + 2**-4
    write_call(tmp_path / "call.safetensors", call)
    done = judge_file(foreshock, tmp_path / "call.safetensors")
    assert done.returncode == 1
    first, *rest = done.stdout.splitlines()
    assert [line.split()[0] for line in rest if "FAILS" in line] == [tensor]
    assert first.startswith(f"FAIL: {tensor} wrong by ")
    assert len(first) <= 100


def test_not_a_number_fails(foreshock, tmp_path):
    call = {name: value.detach().clone() for name, value in attention_call().items()}
    call["dq"][1, 0, 3, 5] = float("nan")
    write_call(tmp_path / "call.safetensors", call)
    done = judge_file(foreshock, tmp_path / "call.safetensors")
    assert done.returncode == 1
    assert "1 elements are not finite" in done.stdout


def test_a_gradient_that_should_be_zero_fails_where_it_is_not(foreshock, tmp_path):
    call = {name: value.detach().clone() for name, value in attention_call(keys=1).items()}
    call["dq"][1, 2] += 1
    write_call(tmp_path / "call.safetensors", call)
    done = judge_file(foreshock, tmp_path / "call.safetensors")
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines() if "FAILS" in line] == ["dq"]
    assert "nan" not in done.stdout


def test_reports_what_the_reference_cannot_judge(foreshock, tmp_path):
    """One query that is no number, then a key that spoils every row of all heads."""
    call = {name: value.detach().clone() for name, value in attention_call().items() if len(name) < 2 or name == "out"}
    call["q"][0, 0, 3, 5] = float("nan")
    write_call(tmp_path / "call.safetensors", call)
    done = judge_file(foreshock, tmp_path / "call.safetensors")
    assert done.returncode == 0
    assert f"64 of {2 * 4 * 64 * 64} values of out are not compared" in done.stdout
    call["k"][:, :, 7, 0] = float("nan")
    write_call(tmp_path / "call.safetensors", call)
    done = judge_file(foreshock, tmp_path / "call.safetensors")
    assert done.returncode == 1
    assert "nothing to compare" in done.stdout


def test_the_model_of_the_shipped_kernel_has_its_bias(foreshock, tmp_path):
    """Flat scores, 48 slices: torch's CPU kernel (key blocks of 512, first to last) beside the lab's model of it."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(6, 8, 1024, 64) for _ in range(3))
    q, k, v = (x.bfloat16() for x in (q * 3e-4, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    write_call(tmp_path / "call.safetensors", {"q": q, "k": k, "v": v, "out": out})
    models = "flash2_shipped,flash2_cast_sum"
    done = judge_file(foreshock, tmp_path / "call.safetensors", "--algorithm", models, "--block-k", "512")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.startswith("  ")}
    real, model, cast = (float(rows[name][5]) for name in ("out", "flash2_shipped", "flash2_cast_sum"))
    assert done.returncode == 1
    assert "biased" in done.stdout
    assert real > 0.1
    assert abs(model - real) < 0.07
    assert abs(cast) < 0.03


@pytest.mark.parametrize("content", [b"", b"12345678", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"{}"])
def test_files_that_are_no_calls_get_one_line(foreshock, tmp_path, content):
    (tmp_path / "bad").write_bytes(content)
    done = judge_file(foreshock, tmp_path / "bad")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_a_header_that_points_outside_is_refused(foreshock, tmp_path):
    write_call(tmp_path / "call", attention_call())
    whole = (tmp_path / "call").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-10])
    done = judge_file(foreshock, tmp_path / "cut")
    assert done.returncode == 2
    assert "lies beyond the end of the file" in done.stderr


def run_sweep(foreshock, function, *options):
    command = [foreshock, "judge", "--function", function, "--python", sys.executable, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=HERE)


def test_a_python_without_torch_gets_one_line(foreshock, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # no site-packages
    python.chmod(0o755)
    command = [foreshock, "judge", "--function", "torch:tensor", "--python", python]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 2
    assert "has no torch" in done.stderr
    assert done.stderr.count("\n") == 1


def test_attention_of_torch_passes_and_its_known_bias_is_listed(foreshock):
    done = run_sweep(foreshock, "torch.nn.functional:scaled_dot_product_attention", "--grad")
    assert done.returncode == 0, done.stdout + done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("PASS: ")
    assert len(first) <= 100
    # The one known defect of the CPU kernel: flat scores are biased away from zero.
    known = [line for line in rest if line.startswith("  known")]
    assert all("biased away from zero" in line for line in known)
    assert ("known bias" in first) == bool(known)


def biased(q, k, v, scale=None):
    """Attention whose output is a quarter of a spacing too large, which PyTorch's own attention is not."""
    out = wrong_kernels.right(q.float(), k.float(), v.float(), scale=scale)
    return (out * (1 + torch.finfo(q.dtype).eps / 4)).to(q.dtype)


def own_attention(q, k, v, scale=None):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)


def flat(case):
    return case.distribution == "flat"


def test_a_bias_is_known_only_if_torch_has_the_same_bits():
    assert foreshock_judge.judge(biased, only=flat).headline().startswith("FAIL: out: biased away from zero by")
    report = foreshock_judge.judge(own_attention, only=flat)
    strict = foreshock_judge.judge(own_attention, only=flat, strict=True)
    assert not report.findings
    assert [finding.measured for finding in strict.findings] == [finding.measured for finding in report.known]


def test_the_first_line_names_tensors_size_and_cases():
    def too_large(q, k, v, is_causal=False, scale=None):
        out = wrong_kernels.right(q, k, v, is_causal=is_causal, scale=scale)
        return out * 1.05 if is_causal else out

    report = foreshock_judge.judge(too_large, only=lambda case: case.shape == "square" and case.mask != "float")
    assert report.headline() == "FAIL: out wrong by up to 5 % (1 of 4 cases failed)"
    assert "1 need attn_mask" in str(report)
    assert "keywords that the function accepts: is_causal, scale" in str(report)


@pytest.mark.parametrize("name", ["causal", "is_causal"])
def test_a_function_whose_default_is_causal_is_judged_with_and_without_the_mask(name):
    space = {"right": wrong_kernels.right}
    exec(f"def kernel(q, k, v, {name}=True): return right(q, k, v, is_causal={name})", space)
    report = foreshock_judge.judge(space["kernel"], only=lambda case: case.shape == "square" and case.mask != "float")
    assert report.headline().startswith("PASS: ")
    assert (report.cases, set(report.skipped)) == (4, {"attn_mask"})


def test_a_keyword_that_is_not_known_is_listed_as_not_passed():
    def kernel(q, k, v, window=None):
        return wrong_kernels.right(q, k, v)

    report = foreshock_judge.judge(kernel, only=lambda case: case.shape == "square")
    assert "none of attn_mask, is_causal, scale, enable_gqa (not passed: window)" in str(report)
    nothing = foreshock_judge.judge(kernel, only=lambda case: case.mask == "causal")
    assert nothing.headline().startswith("NOT JUDGED")


def test_a_function_is_named_by_its_file(foreshock, tmp_path):
    (tmp_path / "beside.py").write_text("SCALE = None\n")
    (tmp_path / "attention.py").write_text(
        "import math\nimport torch\nfrom beside import SCALE\n\n"
        "def f(q, k, v):\n    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v\n"
    )
    done = run_sweep(foreshock, f"{tmp_path / 'attention.py'}:f", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("PASS: ")


def findings_of(function, grad=False, only=None):
    return foreshock_judge.judge(function, function.__name__, grad=grad, only=only).findings


def small(case):
    return case.shape != "many slices"


def test_a_right_kernel_passes(foreshock):
    assert not findings_of(wrong_kernels.right, grad=True, only=small)


def test_causal_off_by_one_fails_for_causal_masks_only():
    findings = findings_of(wrong_kernels.causal_off_by_one, only=small)
    assert findings
    assert {finding.case.mask for finding in findings} == {"causal"}


def test_wrong_scale_fails_for_the_head_dimensions_that_are_padded():
    findings = findings_of(wrong_kernels.wrong_scale, only=small)
    assert {finding.case.d for finding in findings} == {24, 40}


def test_dropped_key_block_fails_for_ragged_lengths():
    findings = findings_of(wrong_kernels.dropped_block, only=small)
    assert findings
    assert all(finding.case.keys % 64 for finding in findings)
    assert any(finding.case.shape == "ragged" for finding in findings)


def test_state_in_bf16_fails_for_long_rows_of_one_sign():
    findings = findings_of(wrong_kernels.low_precision_state, only=lambda case: case.shape == "long")
    assert {finding.case.distribution for finding in findings} >= {"uniform", "one-signed"}


@pytest.mark.long
def test_gradient_of_the_wrong_group_fails_for_grouped_heads():
    findings = findings_of(wrong_kernels.wrong_group, grad=True, only=small)
    assert {finding.tensor for finding in findings} == {"dk"}
    assert {finding.case.shape for finding in findings} == {"grouped heads"}


def test_a_race_fails_by_its_bits():
    findings = findings_of(wrong_kernels.race, only=small)
    assert findings
    assert all("race" in finding.measured for finding in findings)


def test_an_exception_at_a_later_call_is_a_finding():
    calls = []

    def fails_at_the_second_call(q, k, v, is_causal=False, scale=None):
        calls.append(0)
        if len(calls) % 2 == 0:
            raise RuntimeError("out of workspace")
        return wrong_kernels.right(q, k, v, is_causal=is_causal, scale=scale)

    findings = foreshock_judge.judge(fails_at_the_second_call, only=small).findings
    assert findings
    assert all("out of workspace" in finding.measured for finding in findings)


def test_unsupported_inputs_are_listed_as_not_judged():
    report = foreshock_judge.judge(wrong_kernels.low_precision_state, only=lambda case: case.mask == "causal")
    assert report.cases == 0
    assert report.skipped["is_causal"] > 0
    assert not report.findings


def test_works_as_a_pytest_fixture(tmp_path):
    (tmp_path / "test_kernel.py").write_text(
        "pytest_plugins = ['foreshock_judge']\n"
        "import wrong_kernels\n"
        "def test_right(judge_attention):\n    judge_attention(wrong_kernels.right, quick=True)\n"
        "def test_wrong(judge_attention):\n    judge_attention(wrong_kernels.causal_off_by_one, quick=True)\n"
    )
    paths = [str(HERE), str(HERE.parents[1] / "lab" / "python")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path],
        env={"PYTHONPATH": ":".join(paths), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "mask causal" in done.stdout


@pytest.mark.parametrize(
    "function",
    keep(
        ["nothing", "no_such_module:f", "no_such_file.py:f", "math:pi", "math:no_such_function"],
        "no_such_module:f",
        "no_such_file.py:f",
    ),
)
def test_an_invalid_function_gets_one_line(foreshock, function):
    done = run_sweep(foreshock, function)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    keep(["raise SystemExit(0)", "raise RuntimeError", "def f(:", "raise OSError('a\\nb')"], "raise SystemExit(0)"),
)
def test_a_module_that_ends_or_fails_is_no_verdict(foreshock, tmp_path, text):
    (tmp_path / "broken.py").write_text(text + "\n")
    command = [foreshock, "judge", "--function", "broken:f", "--python", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("foreshock judge: broken:f cannot be imported: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("error", "told"), [(SystemExit(0), "SystemExit: 0"), (AssertionError(), "AssertionError")])
def test_a_function_that_exits_or_fails_silently_is_a_finding(error, told):
    def kernel(q, k, v):
        raise error

    report = foreshock_judge.judge(kernel, only=small)
    assert report.cases > 0
    assert len(report.findings) == report.cases
    assert f"FAILS call: {told}\n" in str(report)
