"""Judges an attention function: compares its results for many inputs with attention in fp64 (the reference). The limit
of its error is a multiple of the noise floor. The noise floor is the larger of two errors: that of plain,
unfused attention in the same precision, and the rounding error of the best possible result.

    foreshock judge --function MODULE:NAME|FILE.py:NAME [--device cuda] [--dtype bf16] [--grad]

or in tests, with this file's folder on PYTHONPATH and `pytest_plugins = ["foreshock_judge"]`:

    def test_kernel(judge_attention):
        judge_attention(my_attention, device="cuda", grad=True)

The function is called like torch's scaled_dot_product_attention: with query, key, value of shape
[batch, heads, length, d], and with those of the keywords attn_mask, is_causal (or causal), scale, enable_gqa that it
accepts. dq, dk and dv are the gradients of query, key and value. A kv-head is a head of key and value, which several
heads of the query may share.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import math
import os
import sys
from collections import Counter
from dataclasses import dataclass, field

try:
    import torch
except ImportError as no_torch:
    if __name__ != "__main__":
        raise
    print(f"foreshock judge: {sys.executable} has no torch ({no_torch}): name one with --python", file=sys.stderr)
    sys.exit(2)

FORWARD_LIMIT, BACKWARD_LIMIT = 2.0, 3.0  # limits of the error of out and of the gradients, as multiples of the floor
BIAS_LIMIT, BIAS_Z = 0.05, 6.0  # limits of the signed error of out, in ulp and in standard errors
BIAS_SLICES = 16  # the bias is judged if there are at least so many slices (batch elements times kv-heads)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
KEYWORDS = ("attn_mask", "is_causal", "scale", "enable_gqa")
OTHER_NAMES = {"causal": "is_causal"}
MOST_SHOWN = 3  # findings of each tensor that the report shows; it lists the classes of inputs of all


@dataclass(frozen=True)
class Case:
    shape: str  # name of the class of shapes, for the report
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int  # head dimension
    mask: str = "none"  # none, causal, bool, float
    distribution: str = "normal"  # of the inputs, see inputs()

    def __str__(self) -> str:
        sizes = f"{self.batch}x{self.heads}/{self.kv_heads} {self.queries}x{self.keys} d{self.d}"
        return f"{self.shape} ({sizes}), mask {self.mask}, input {self.distribution}"


@dataclass
class Finding:
    case: Case
    tensor: str  # the results that fail: out, dq, dk, dv; "call": the function raised an exception
    measured: str  # the reason, with figures
    error: float = 0.0  # relative error (L2), if that is the reason
    # The result has the bits of PyTorch's own attention, so its bias is one that PyTorch publishes and users accept.
    is_known: bool = False


@dataclass
class Report:
    name: str  # of the function
    keywords: tuple[str, ...] = ()  # those of KEYWORDS that the function accepts
    other_keywords: tuple[str, ...] = ()  # its other parameters after query, key and value, which are not passed
    cases: int = 0  # cases that were run
    skipped: Counter = field(default_factory=Counter)  # cases that were not run, by the keywords that they need
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)  # by tensor: largest error / floor, and its case
    findings: list[Finding] = field(default_factory=list)  # those that fail the function
    known: list[Finding] = field(default_factory=list)  # those with is_known, unless they are to fail too

    def headline(self) -> str:
        """The verdict, in at most 100 characters."""
        if self.cases == 0:
            return "NOT JUDGED: no case applies to this function"
        if not self.findings:
            known = f", {counted(len(self.known), 'known bias', 'known biases')} of PyTorch" if self.known else ""
            return f"PASS: {counted(self.cases, 'case')} run, {self.skipped.total()} not applicable{known}"
        ending = f" ({len({str(f.case) for f in self.findings})} of {counted(self.cases, 'case')} failed)"
        wrong = [finding for finding in self.findings if finding.error > 0]
        if wrong:
            tensors = ", ".join(dict.fromkeys(finding.tensor for finding in wrong))
            what = f"{tensors} wrong by up to {percent(max(finding.error for finding in wrong))}"
        else:
            first = self.findings[0]
            what = ("" if first.tensor == "call" else f"{first.tensor}: ") + first.measured.split(",")[0]
        return f"FAIL: {what}"[: 100 - len(ending)] + ending

    def findings_by_tensor(self) -> dict[str, list[Finding]]:
        """The findings of each tensor, the largest errors first."""
        found: dict[str, list[Finding]] = {}
        for finding in self.findings:
            found.setdefault(finding.tensor, []).append(finding)
        return {tensor: sorted(each, key=lambda finding: -finding.error) for tensor, each in found.items()}

    def __str__(self) -> str:
        lines = [self.headline(), f"{self.name}, against fp64; noise floor: plain attention in the same precision"]
        for tensor, (ratio, case) in self.worst.items():
            lines.append(f"  {tensor:12} worst {ratio:8.2f} times the noise floor: {case}")
        for tensor, found in self.findings_by_tensor().items():
            for finding in found[:MOST_SHOWN]:
                lines.append(f"  FAILS {tensor}: {finding.measured}\n        {finding.case}")
            if len(found) > MOST_SHOWN:
                lines.append(f"        and {counted(len(found) - MOST_SHOWN, 'more case')} of {tensor}")
        for finding in self.known:
            lines.append(
                f"  known, {finding.tensor}: {finding.measured}; PyTorch's own attention gives the same bits\n"
                f"        {finding.case}"
            )
        if self.skipped:
            needs = ", ".join(f"{count} need {needed}" for needed, count in self.skipped.items())
            accepted = ", ".join(self.keywords) or f"none of {', '.join(KEYWORDS)}"
            ignored = f" (not passed: {', '.join(self.other_keywords)})" if self.other_keywords else ""
            lines.append(f"  not run: {needs}; keywords that the function accepts: {accepted}{ignored}")
        if self.findings:
            failed = [finding.case for finding in self.findings]
            by_class = sorted({f"mask {case.mask}, input {case.distribution}, {case.shape}" for case in failed})
            lines.append("beyond the limits for:")
            lines += [f"  {name}" for name in by_class]
        return "\n".join(lines)


def counted(count: int, singular: str, plural: str = "") -> str:
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def percent(error: float) -> str:
    """A relative error: "5 %", "0.02 %"; "more than 100 times its size" from there on."""
    return f"{100 * error:.2g} %" if error < 100 else "more than 100 times its size"


def cases(quick: bool = False) -> list[Case]:
    """The cases of a sweep; with `quick` only those of three classes of shapes."""
    square = ("square", 2, 2, 2, 64, 64, 64)  # shape, batch, heads, kv_heads, queries, keys, d
    shapes = [
        square,
        ("ragged", 1, 2, 2, 77, 133, 64),
        ("one query", 2, 4, 4, 1, 256, 64),
        ("more queries than keys", 1, 2, 2, 160, 96, 64),
        ("grouped heads", 1, 8, 2, 96, 96, 64),
        ("long", 1, 2, 2, 64, 1100, 64),
    ]
    shapes += [(f"head dimension {d}", 1, 2, 2, 80, 80, d) for d in (24, 40, 128, 256)]
    many = ("many slices", 4, 8, 8, 128, 256, 64)  # 32 slices, so that the bias is judged
    all_cases = [Case(*shape) for shape in shapes]
    all_cases += [Case(*shape, mask="causal") for shape in shapes if 1 < shape[4] <= shape[5]]  # 1 < queries <= keys
    masked = shapes[:2] + shapes[4:5]  # square, ragged, grouped heads
    all_cases += [Case(*shape, mask=mask) for shape in masked for mask in ("bool", "float")]
    all_cases += [Case(*many, distribution=name) for name in ("normal", "flat", "ties", "one-signed")]
    all_cases += [Case("long", 1, 2, 2, 64, 1100, 64, distribution=name) for name in ("uniform", "one-signed")]
    all_cases += [Case(*square, distribution=name) for name in ("massive", "very negative")]
    return [c for c in all_cases if c.shape in ("square", "ragged", "grouped heads")] if quick else all_cases


def inputs(case: Case, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    """Returns q, k, v, grad_out, and mask if the case has a mask as a tensor, on the CPU."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    q = normal(case.batch, case.heads, case.queries, case.d)
    k, v = (normal(case.batch, case.kv_heads, case.keys, case.d) for _ in range(2))
    if case.distribution == "uniform":  # ndtr, the normal distribution function, gives values in (0, 1)
        q, k, v = (torch.special.ndtr(x) for x in (q, k, v))
    elif case.distribution == "flat":  # scores so close that in bf16 every exp(score - maximum) rounds to 1
        q = q * 3e-4
    elif case.distribution == "one-signed":
        v = -v.abs()
    elif case.distribution == "massive":  # one channel far above the others, as in trained models
        q[..., 3] *= 30
        k[..., 3] *= 30
        v[..., 3] *= 1000
    elif case.distribution == "very negative":  # every score near -300: |direction|^2 / sqrt(d) is 300
        direction = normal(case.d)
        direction *= math.sqrt(300 / direction.square().sum().item() * math.sqrt(case.d))
        q, k = q + direction, k - direction
    elif case.distribution == "ties":  # every key occurs twice
        half = (case.keys + 1) // 2
        k = torch.cat([k[..., :half, :], k[..., : case.keys - half, :]], dim=-2)
    tensors = {"q": q, "k": k, "v": v, "grad_out": normal(case.batch, case.heads, case.queries, case.d)}
    tensors = {name: x.to(dtype) for name, x in tensors.items()}
    if case.mask == "bool":
        tensors["mask"] = torch.rand(case.queries, case.keys, generator=random) < 0.7
        tensors["mask"][:, 0] = True  # every row sees a key: results for a row without keys differ between frameworks
    elif case.mask == "float":
        tensors["mask"] = normal(case.queries, case.keys).to(dtype)
    return tensors


def plain(q, k, v, case: Case, mask, probabilities_of=torch.softmax) -> torch.Tensor:
    """Unfused attention in the dtype of its inputs; fp64 inputs give the reference. `probabilities_of` is called in the
    place of torch.softmax."""
    group = case.heads // case.kv_heads
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(case.d))
    if case.mask == "causal":
        seen = torch.ones(case.queries, case.keys, dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    elif case.mask == "bool":
        scores = scores.masked_fill(~mask, -math.inf)
    elif case.mask == "float":
        scores = scores + mask.to(scores.dtype)
    return probabilities_of(scores, dim=-1) @ v


def gradients_from_rounded_out(x, case: Case, mask, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The best gradients that a kernel can compute if it stores its output in `dtype`: computed in fp64, except that
    delta (the row sums of grad_out * out) uses the rounded output. delta is subtracted from grad_p, the gradient of the
    attention probabilities."""
    leaves = [x[name].double().requires_grad_() for name in ("q", "k", "v")]
    kept = {}  # the scores, and the probabilities p

    def softmax_and_keep(scores, dim):
        kept["scores"], kept["p"] = scores, torch.softmax(scores, dim=dim)
        return kept["p"]

    out = plain(*leaves, case, mask, softmax_and_keep)
    group = case.heads // case.kv_heads
    grad_out, rounded = x["grad_out"].double(), out.detach().to(dtype).double()
    p = kept["p"].detach()
    grad_p = grad_out @ leaves[2].detach().repeat_interleave(group, dim=1).transpose(-1, -2)
    grad_scores = p * (grad_p - (grad_out * rounded).sum(-1, keepdim=True))
    grad_q, grad_k = torch.autograd.grad(kept["scores"], leaves[:2], grad_scores, retain_graph=True)
    grad_v = torch.autograd.grad(out, leaves[2], grad_out)[0]
    return {"dq": grad_q, "dk": grad_k, "dv": grad_v}


def attention_of_torch(case: Case, x, mask) -> torch.Tensor:
    """The output of PyTorch's own attention for the inputs of a case. Its kernel may depend on whether gradients are
    needed, as in run_all()."""
    return torch.nn.functional.scaled_dot_product_attention(
        x["q"], x["k"], x["v"], attn_mask=mask, is_causal=case.mask == "causal", scale=1 / math.sqrt(case.d),
        enable_gqa=case.heads != case.kv_heads,
    )  # fmt: skip


def run_all(call, x, grad: bool) -> dict[str, torch.Tensor]:
    """Results of call(q, k, v) on the inputs x: out, and with `grad` dq, dk and dv."""
    leaves = [x[name].detach().clone().requires_grad_(grad) for name in ("q", "k", "v")]
    out = call(*leaves)
    results = {"out": out}
    if grad:
        results |= dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, x["grad_out"].to(out.dtype))))
    return {name: tensor.detach() for name, tensor in results.items()}


def in_one_line(error: BaseException) -> str:
    """The type of the error and the first line of its text, if it has any."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """L2 norm of the error, divided by the norm of the reference; not divided if the reference is 0."""
    norm = reference.norm().item()
    error = (result.double() - reference).norm().item()
    return error / norm if norm > 0 else error


def ulp(reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The spacing of the numbers of `dtype` around each element."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(reference.abs().clamp(min=info.tiny)).exponent - 1  # frexp's mantissa is in [0.5, 1)
    return torch.ldexp(torch.full_like(reference, info.eps), exponent)


def bias(result: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype, kv_heads: int) -> tuple[float, float]:
    """Returns the signed error of all elements in ulp, positive away from zero; and z, the mean of the slices' signed
    errors divided by its standard error. Each batch element and kv-head is a slice. z is 0 if there is one slice only,
    or if all slices have the same error."""
    signed = (result.double() - reference) * reference.sign()
    outward = signed.unflatten(1, (kv_heads, -1)).sum(dim=(2, 3, 4)).flatten()  # one sum per slice
    pooled = (outward.sum() / ulp(reference, dtype).sum()).item()
    if outward.numel() < 2:
        return pooled, 0.0
    standard_error = outward.std().item() / math.sqrt(outward.numel())
    return pooled, outward.mean().item() / standard_error if standard_error > 0 else 0.0


class Sweep:
    """Runs the function `repeats` times on each case and adds the findings to `report`."""

    def __init__(
        self, function, name: str, device: str, dtype: torch.dtype, grad: bool, repeats: int = 3, strict: bool = False
    ):
        """`strict`: known findings fail the function too."""
        self.function, self.device, self.dtype, self.grad, self.repeats = function, device, dtype, grad, repeats
        self.strict = strict
        other, self.other_names = (), {}
        try:
            parameters = list(inspect.signature(function).parameters.values())
            takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
            self.other_names = {OTHER_NAMES[p.name]: p.name for p in parameters if p.name in OTHER_NAMES}
            names = [OTHER_NAMES.get(p.name, p.name) for p in parameters]
            self.keywords = KEYWORDS if takes_all else tuple(name for name in names if name in KEYWORDS)
            variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
            named = [p.name for p in parameters if p.kind not in variadic]
            other = tuple(name for name in named[3:] if OTHER_NAMES.get(name, name) not in KEYWORDS)
        except (TypeError, ValueError):  # built-in functions have no signature; torch's accepts all keywords
            self.keywords = KEYWORDS
        self.report = Report(name, self.keywords, other)

    def keywords_for(self, case: Case, mask) -> tuple[dict, list[str]]:
        """The keyword arguments beside query, key, value, and those of them that the function does not accept."""
        given = {"scale": 1 / math.sqrt(case.d), "is_causal": False}  # a function's own default may be another one
        optional = {name: value for name, value in given.items() if name in self.keywords}
        needed = {"is_causal": True} if case.mask == "causal" else {}
        if mask is not None:
            needed["attn_mask"] = mask
        if case.heads != case.kv_heads:
            needed["enable_gqa"] = True
        passed = {self.other_names.get(name, name): value for name, value in (optional | needed).items()}
        return passed, [name for name in needed if name not in self.keywords]

    def judge(self, case: Case, seed: int) -> None:
        x = {name: tensor.to(self.device) for name, tensor in inputs(case, self.dtype, seed).items()}
        mask = x.pop("mask", None)
        keywords, missing = self.keywords_for(case, mask)
        if missing:
            self.report.skipped[" and ".join(missing)] += 1
            return
        self.report.cases += 1
        call = lambda q, k, v: self.function(q, k, v, **keywords)  # noqa: E731
        try:
            results = run_all(call, x, self.grad)
            self.check_repeats(case, call, x, results)
        except (Exception, SystemExit) as error:  # a kernel that refuses a shape is a finding, not the end of the sweep
            self.report.findings.append(Finding(case, "call", in_one_line(error)))
            return
        fp64 = {name: tensor.double() for name, tensor in x.items()}
        reference = run_all(lambda q, k, v: plain(q, k, v, case, mask), fp64, self.grad)
        plain_results = run_all(lambda q, k, v: plain(q, k, v, case, mask), x, self.grad)
        best = gradients_from_rounded_out(x, case, mask, self.dtype) if self.grad else {}  # best out: the reference
        for tensor, result in results.items():
            best_result = best.get(tensor, reference[tensor])
            self.check(case, tensor, result, reference[tensor], plain_results[tensor], best_result)
        if case.batch * case.kv_heads >= BIAS_SLICES and not any(f.case is case for f in self.report.findings):
            self.check_bias(case, results["out"], reference["out"], x, mask)

    def check(self, case, tensor, result, reference, plain_result, best) -> None:
        """Checks one result of the function. `reference`: the fp64 result; `plain_result`: that of plain attention.
        `best`: the best result that a kernel can compute, not yet rounded to the dtype."""
        if result.shape != reference.shape:
            shapes = f"shape {tuple(result.shape)} instead of {tuple(reference.shape)}"
            self.report.findings.append(Finding(case, tensor, shapes))
            return
        non_finite = int((~torch.isfinite(result)).sum())
        if non_finite:
            self.report.findings.append(Finding(case, tensor, f"{non_finite} elements are not finite"))
            return
        # The noise floor: the error of plain attention, but at least the error of `best` rounded to the dtype.
        noise = max(relative_error(plain_result, reference), relative_error(best.to(self.dtype), reference))
        error = relative_error(result, reference)
        ratio = 0.0
        if error != 0:
            ratio = error / noise if noise > 0 else math.inf
        if not ratio <= self.report.worst.get(tensor, (0.0, ""))[0]:  # true for NaN too
            self.report.worst[tensor] = (ratio, str(case))
        limit = FORWARD_LIMIT if tensor == "out" else BACKWARD_LIMIT
        if not ratio <= limit:
            measured = f"error {error:.2e} is {ratio:.3g} times the noise floor (limit {limit:g})"
            self.report.findings.append(Finding(case, tensor, measured, error))

    def check_bias(self, case, result, reference, x, mask) -> None:
        """Reports a biased output, unless the reference is biased too after it was rounded to the dtype. If PyTorch's
        own attention gives the same bits, the bias is a known one."""
        ulps, z = bias(result, reference, self.dtype, case.kv_heads)
        rounded_ulps, rounded_z = bias(reference.to(self.dtype), reference, self.dtype, case.kv_heads)
        reference_is_unbiased = abs(rounded_ulps) <= BIAS_LIMIT or abs(rounded_z) <= BIAS_Z
        if abs(ulps) > BIAS_LIMIT and abs(z) > BIAS_Z and reference_is_unbiased:
            where = "away from zero" if ulps > 0 else "towards zero"
            measured = f"biased {where} by {abs(ulps):.3f} ulp, z {z:.0f} (rounded reference {rounded_ulps:+.3f} ulp)"
            is_known = torch.equal(result, attention_of_torch(case, x, mask))
            findings = self.report.known if is_known and not self.strict else self.report.findings
            findings.append(Finding(case, "out", measured, is_known=is_known))

    def check_repeats(self, case, call, x, results) -> None:
        """Checks that equal inputs give equal bits. On a GPU only the output is compared, since kernels may sum
        gradients by atomic operations in any order. NaN, which never equals NaN, is reported by check() instead."""
        for _ in range(self.repeats - 1):
            again = run_all(call, x, self.grad)
            names = results if self.device == "cpu" else ["out"]
            changed = [name for name in names if not torch.equal(again[name], results[name])]
            if changed and all(bool(torch.isfinite(results[name]).all()) for name in changed):
                self.report.findings.append(Finding(case, ", ".join(changed), "bits change from call to call: a race"))
                return


def judge(
    function, name="attention", device="cpu", dtype=torch.bfloat16, grad=False, quick=False, only=None, progress=None,
    strict=False,
) -> Report:  # fmt: skip
    """Runs the function on all cases. `only` selects cases. `progress(done, total)` is called after each case.
    `strict`: a known bias of PyTorch fails the function too."""
    sweep = Sweep(function, name, device, dtype, grad, strict=strict)
    selected = [case for case in cases(quick) if only is None or only(case)]
    for i, case in enumerate(selected):
        sweep.judge(case, seed=i + 1)
        if progress:
            progress(i + 1, len(selected))
    return sweep.report


try:
    import pytest
except ImportError:
    pass
else:

    @pytest.fixture
    def judge_attention():
        def check(function, **options):
            report = judge(function, getattr(function, "__name__", "attention"), **options)
            assert not report.findings, str(report)
            return report

        return check


def import_function(name: str):
    """The function MODULE:NAME, imported from the current directory or sys.path, or FILE.py:NAME."""
    module_name, _, attribute = name.rpartition(":")
    if not module_name or not attribute:
        raise ValueError(f"'{name}' is not MODULE:NAME or FILE.py:NAME")
    sys.path.insert(0, os.getcwd())
    found = import_file(module_name) if module_name.endswith(".py") else importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{name} is not a function")
    return found


def import_file(path: str):
    """The module in the file `path`. Modules beside the file can be imported by it, as if it were run as a script."""
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path}")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    name = os.path.splitext(os.path.basename(path))[0]
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def main() -> int:
    parser = argparse.ArgumentParser(prog="foreshock judge", description="sweep an attention function against fp64")
    parser.add_argument("--function", required=True, metavar="MODULE:NAME", help="or FILE.py:NAME")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--grad", action="store_true", help="judge dq, dk, dv as well")
    parser.add_argument("--quick", action="store_true", help="less than half of the cases")
    parser.add_argument("--strict", action="store_true", help="a known bias of PyTorch's own attention fails too")
    options = parser.parse_args()
    try:
        function = import_function(options.function)
    except (ImportError, AttributeError, ValueError) as error:
        print(f"foreshock judge: {error}", file=sys.stderr)
        return 2
    except (Exception, SystemExit) as error:  # raised by the user's module; its exit status must not become the verdict
        print(f"foreshock judge: {options.function} cannot be imported: {in_one_line(error)}", file=sys.stderr)
        return 2

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{done} of {total} cases", end="\n" if done == total else "", file=sys.stderr, flush=True)

    dtype = DTYPES[options.dtype]
    report = judge(
        function, options.function, options.device, dtype, options.grad, options.quick, progress=progress,
        strict=options.strict,
    )  # fmt: skip
    print(report)
    if report.cases == 0:
        return 2
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
