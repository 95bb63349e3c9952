"""Runs the attention operation of a flagged slice again with torch, on the inputs that were stored, and judges whether
its result repeats.

    foreshock judge --rerun SLICE.safetensors... [--times N] [--device cpu|cuda] [--function MODULE:NAME]

`foreshock run --save-flagged` writes slices whose result exceeded a limit, and some others as controls. A slice holds
some query rows of a call, with every key they see. Here the rows are placed at their original positions in a call of
the original size, with zeros elsewhere, so that the kernel uses the same tiles. The zero rows do not affect the result.
A Slice has the arrays and metadata (`facts`) of a file, a Call the arguments of the call. Call.place() puts rows of the
slice at their positions, and Call.rows_of_slice() takes them out of a result. The result is the output, or dQ for a
backward slice.

Exit status: 0 if no error shows, 1 if a kernel is wrong or does not repeat its bits, 2 if a slice could not be run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass

try:
    import torch
except ImportError as no_torch:
    if __name__ != "__main__":
        raise
    print(f"foreshock judge: {sys.executable} has no torch ({no_torch}): name one with --python", file=sys.stderr)
    sys.exit(2)

from foreshock_judge import BACKWARD_LIMIT, FORWARD_LIMIT, import_function, in_one_line, ulp
from foreshock_slice import Call, Slice, SliceError, read_slice

FORWARD_OPERATIONS = (  # operations of aten that can be run; the first two run on a CPU
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
CPU_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"
CPU_OPERATIONS = (*FORWARD_OPERATIONS[:2], CPU_BACKWARD)


def operation_of(stored: Slice) -> str:
    """The operation's name in the file. It may be of any length, so messages show its first 80 characters."""
    return stored.facts.get("op", "").removeprefix("aten::")


def aten(name: str):
    """Returns torch.ops.aten.NAME; raises SliceError if this torch has no such operation."""
    try:
        return getattr(torch.ops.aten, name).default
    except AttributeError:
        raise SliceError(f"torch {torch.__version__} has no {name}") from None


def cpu_backward(call: Call) -> torch.Tensor:
    """Runs the backward operation alone, with the stored output and log-sum-exp. Returns the gradient of the query."""
    arrays, operation = call.stored.arrays, aten(CPU_BACKWARD)
    arguments = call.arguments(operation) | {
        "grad_out": call.place(arrays["dout"]),
        "out": call.place(arrays["out"]),
        "logsumexp": call.place(arrays["lse"]),
    }
    return call.rows_of_slice(operation(**arguments)[0])  # [0]: the first result is the gradient of the query


def through_autograd(call: Call, forward) -> torch.Tensor:
    """Runs the forward and its backward; returns the gradient of the query."""
    query = call.query.clone().requires_grad_()
    out = forward(query)
    return call.rows_of_slice(torch.autograd.grad(out, query, call.place(call.stored.arrays["dout"]).to(out.dtype))[0])


def runner(call: Call, function) -> tuple[str, object]:
    """Returns the operation's name, and a function that runs it once and returns the slice's rows of the result as a
    tensor on the CPU. If `function` is not None, it is called instead of the operation."""
    stored, name = call.stored, operation_of(call.stored)
    for fact, what in (("soft_cap", "a soft cap"), ("dropout", "dropout")):
        if fact in stored.facts:
            raise SliceError(f"its call had {what}, which neither torch's operations nor --function can be given")
    if function is not None:
        options = {"scale": float(stored.facts["scale"]), "is_causal": call.causal}
        if call.mask is not None:
            options["attn_mask"] = call.mask
        forward = lambda query: function(query, call.key, call.value, **options)  # noqa: E731
        forward_name = getattr(function, "__name__", "the function")
    elif name == CPU_BACKWARD and "lse" in stored.arrays:
        return name, lambda: cpu_backward(call)
    else:
        forward_name = name.removesuffix("_backward")
        if forward_name not in FORWARD_OPERATIONS:
            raise SliceError(f"'{name[:80]}' cannot be run by itself: name its function, --function MODULE:NAME")
        operation = aten(forward_name)
        # [0]: the first result is the output.
        forward = lambda query: operation(**(call.arguments(operation) | {"query": query}))[0]  # noqa: E731
    if stored.backward:
        return f"{forward_name} and its backward", lambda: through_autograd(call, forward)
    return forward_name, lambda: call.rows_of_slice(forward(call.query))


@dataclass
class Report:
    file: str
    reason: str  # why the slice was stored: the limit it exceeded, or "control"
    operation: str
    whole_call: bool  # the call was run with the original size (Call.whole); False: with the slice's rows alone
    times: int  # number of runs
    results: int  # number of different results
    as_stored: bool  # the first result equals the stored one bit for bit
    values_unlike_stored: int  # values of the first result whose bits differ from the stored ones
    stored_ratio: float | None  # error of the stored result in noise floors; None: no row is comparable
    ratio: float | None  # largest error of the results of this rerun in noise floors
    stored_bias_ulp: float | None  # signed error of the stored result; None: no value is comparable
    bias_ulp: float | None  # signed error of the first result of this rerun
    verdict: str  # a key of VERDICTS


VERDICTS = {
    "does_not_repeat": "does not repeat: equal inputs give different bits here: a race, sums in changing order "
    "(atomics), or faulty hardware",
    "repeats_beyond": "repeats: the operation gives the stored bits for these inputs every time, beyond the gate: the "
    "kernel has this error on such inputs; it was not a single event",
    "repeats": "repeats: the operation gives the stored bits for these inputs every time, within the gate: the inputs "
    "are unusual, or the effect shows only over many slices",
    "errs_again": "wrong again, always with the same bits, which differ from the stored ones: the kernel has an error "
    "on such inputs; another version, device or shape of the call rounds differently",
    "does_not_come_back": "does not come back: here the operation is sound on these inputs, so something else made "
    "the stored result: code that changes the output after the hook, faulty memory or processor, a race, or another "
    "version of the kernel",
    "another_result": "another result, always the same, within the gate as the stored one was: another version, device "
    "or shape of the call, or something that changed the output",
}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Whether the bits of each element are equal; all NaN count as equal."""
    integer = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    return (a.contiguous().view(integer) == b.contiguous().view(integer)) | (a.isnan() & b.isnan())


def ratio_of(stored: Slice, result: torch.Tensor) -> float | None:
    """Norm of the error of `result` divided by that of plain attention (the noise floor, stored in the file), over rows
    whose fp64 reference is finite and not all zero. None: no such row."""
    reference = stored.reference
    squared_norms = reference.square().sum(dim=1)
    compared = squared_norms.isfinite() & (squared_norms > 0)
    if not compared.any():
        return None
    error = (result.double() - reference)[compared]
    noise = float(stored.facts["figure.plain_error_norm"])
    if not bool(error.isfinite().all()):
        return math.inf
    norm = error.square().sum().sqrt().item()
    return norm / noise if noise > 0 else (math.inf if norm > 0 else 0.0)


def bias_of(stored: Slice, result: torch.Tensor) -> float | None:
    """Sum of the signed errors of `result` (positive: away from zero) divided by the sum of the ulps of the reference
    values in the format of `result`. None: no pair of values is finite."""
    reference = stored.reference
    compared = reference.isfinite() & result.isfinite()
    if not compared.any():
        return None
    reference = reference[compared]
    signed = (result[compared].double() - reference) * reference.sign()
    return (signed.sum() / ulp(reference, result.dtype).sum()).item()


def verdict_of(stored_ratio: float | None, ratio: float | None, results: int, as_stored: bool, limit: float) -> str:
    """Returns a key of VERDICTS. `limit`: the gate, that is the limit of an error as a multiple of the noise floor, the
    error of plain attention on the same slice. The other parameters are fields of Report."""
    beyond, was_beyond = (value is not None and value > limit for value in (ratio, stored_ratio))
    if results > 1:
        return "does_not_repeat"
    if as_stored:
        return "repeats_beyond" if beyond else "repeats"
    if beyond:
        return "errs_again"
    return "does_not_come_back" if was_beyond else "another_result"


def rerun(path: str, device: str | None = None, times: int = 5, function=None) -> Report:
    """Reruns the slice of one file. Without `device`, `function` runs on the CPU, an operation on its own device."""
    stored = read_slice(path)
    if device is None:
        device = "cuda" if function is None and operation_of(stored) not in CPU_OPERATIONS else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SliceError(f"{operation_of(stored)[:80] or 'the operation'} needs a GPU, and torch sees none here")
    call = Call(stored, device)
    name, run_once = runner(call, function)
    try:
        all_results = [run_once() for _ in range(times)]
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise SliceError(f"{name} fails on {path}: {str(error).splitlines()[0][:160]}") from error
    result, distinct = all_results[0], []
    if result.shape != stored.result.shape or result.dtype != stored.result.dtype:
        raise SliceError(f"{name} gives {tuple(result.shape)} in {result.dtype}, not what {path} holds")
    for candidate in all_results:
        if not any(bool(same_bits(candidate, known).all()) for known in distinct):
            distinct.append(candidate)
    values_unlike_stored = int((~same_bits(result, stored.result)).sum())
    as_stored = values_unlike_stored == 0
    ratios = [ratio_of(stored, each) for each in distinct]
    ratio = max((each for each in ratios if each is not None), default=None)
    stored_ratio = ratio_of(stored, stored.result)
    limit = BACKWARD_LIMIT if stored.backward else FORWARD_LIMIT
    verdict = verdict_of(stored_ratio, ratio, len(distinct), as_stored, limit)
    return Report(
        path, stored.facts.get("reason", ""), name, call.whole, times, len(distinct), as_stored, values_unlike_stored,
        stored_ratio, ratio, bias_of(stored, stored.result), bias_of(stored, result), verdict,
    )  # fmt: skip


def is_sound(report: Report) -> bool:
    """Whether the operation, as run here, repeats its bits and stays within the gate."""
    return report.verdict in ("repeats", "does_not_come_back", "another_result")


def text_of(report: Report, framework: str) -> str:
    def ratio_text(value: float | None) -> str:
        return "not comparable" if value is None else f"{value:.3g} times the noise floor"

    def bias_text(value: float | None) -> str:
        return "" if value is None else f", bias {value:+.3f} ulp"

    kept = "kept as control" if report.reason == "control" else f"flagged for {report.reason}"
    shape = "a call of the whole size" if report.whole_call else "a call of these rows alone"
    bits = "the bits stored" if report.as_stored else f"{report.values_unlike_stored} values unlike those stored"
    return "\n".join((
        report.file,
        f"  {report.operation}, {report.times} times, {shape}, torch {torch.__version__} (stored: {framework})",
        f"  {kept}: {ratio_text(report.stored_ratio)}{bias_text(report.stored_bias_ulp)}",
        f"  now: {ratio_text(report.ratio)}{bias_text(report.bias_ulp)}; results: {report.results}; {bits}",
        VERDICTS[report.verdict],
    ))  # fmt: skip


def function_named(name: str):
    try:
        return import_function(name)
    except (Exception, SystemExit) as error:  # a module may raise anything when it is imported
        raise SliceError(f"--function {name}: {in_one_line(error)}") from error


def main() -> int:
    parser = argparse.ArgumentParser(prog="foreshock judge", description="run flagged slices again")
    parser.add_argument("--rerun", action="store_true", required=True)  # `foreshock judge` passes on all its arguments
    parser.add_argument("files", nargs="+", metavar="SLICE.safetensors")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--device")
    parser.add_argument("--function", metavar="MODULE:NAME", help="in the place of the operation")
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    if not 2 <= options.times <= 1000:  # a single run cannot show whether the bits repeat
        parser.error("--times takes a number from 2 to 1000")
    status = 0
    for path in options.files:
        try:
            function = function_named(options.function) if options.function else None
            report = rerun(path, options.device, options.times, function)
        except SliceError as error:
            print(f"foreshock judge: {error}", file=sys.stderr)
            status = 2
            continue
        framework = read_slice(path).facts.get("framework", "")
        print(json.dumps(asdict(report)) if options.json else text_of(report, framework))
        status = max(status, 0 if is_sound(report) else 1)
    return status


if __name__ == "__main__":
    sys.exit(main())
