"""Measures how soon a wrong attention kernel is found, and how often a right one is accused, for docs/research.md.

PyTorch's own CPU kernel computes the calls. An error is added to its results. Slices are chosen as by the monitor in a
trainer and judged by the agent's code (bench/verdicts/judge_stream.cpp) as slices of one layer. A cell is the number of
sampled calls until an alarm: the median over the trials, and the worst in brackets if it differs. Each backward call is
sampled twice, by query rows and by key positions; the number of calls is counted for each tensor separately.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import re
import statistics
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release"))
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
FORMATS = {torch.float32: 2, torch.bfloat16: 3, torch.float16: 4}  # their numbers in kernels/dtype.h
PAGE = ROOT / "docs" / "research.md"
BLOCK = re.compile(r"(<!-- (\w+) -->).*?(<!-- end -->)", re.S)  # a generated part of PAGE, with its name
ROWS = 16  # query rows or key positions of a slice, the judged part of a call
MOST_CALLS = 64  # sampled calls of a trial; an error not found within them is reported as "no"
# The judged tensors, and the kind of slice by which each is judged: 0 rows of a forward call, 1 rows of a backward
# call, 2 key positions of a backward call (`pass` in judge_stream.cpp).
TENSORS = {"out": 0, "grad_query": 1, "grad_key": 2, "grad_value": 2}


@dataclass
class Call:
    """One attention call. `lse`: log-sum-exp of each row. `given_out` and `given_lse`: the inputs of the backward call.
    They differ from `out` and `lse` if the call saw only a block of the keys."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    grad: torch.Tensor  # of the output
    causal: bool
    scale: float
    out: torch.Tensor
    lse: torch.Tensor
    grad_query: torch.Tensor | None = None
    grad_key: torch.Tensor | None = None  # one per kv-head, like grad_value
    grad_value: torch.Tensor | None = None
    given_out: torch.Tensor | None = None
    given_lse: torch.Tensor | None = None


@dataclass
class Situation:
    """A kind of call, a column of the tables."""

    name: str
    batch: int = 2
    heads: int = 4
    kv_heads: int = 4
    queries: int = 256
    keys: int = 256
    causal: bool = False
    offset: float = 0  # added to all scores; the softmax does not depend on it
    logits: float = 1  # standard deviation of the scores
    blocks: int = 1  # blocks of keys (ring attention); only the first is judged, with given_out and given_lse over all
    memorised: bool = False  # nearly all softmax weight of a row is on one key


SITUATIONS = [
    Situation("small"),
    Situation("offset -120", offset=-120),
    Situation("offset +120", offset=120),
    Situation("logits of hundreds", logits=120),
    Situation("grouped queries", heads=8, kv_heads=2),
    Situation("causal", causal=True),
    Situation("ring block", keys=512, blocks=2),
]
SOUND_ONLY = [  # judged only with correct calls
    Situation("causal, grouped", heads=8, kv_heads=2, causal=True),
    Situation("memorised", memorised=True),
    Situation("ring of 4", keys=512, blocks=4),
    Situation("8192 keys", batch=1, heads=2, kv_heads=2, queries=64, keys=8192),
]
HEAD_DIM = 64  # of the situations


@dataclass
class Training:
    """A small training whose calls are judged, all with correct kernels. `target`: "noise", a row that the input has
    elsewhere, so that gradients become small; "random", new numbers in each step; "fixed", one batch that is memorised
    until the gradient vanishes."""

    name: str
    dtype: torch.dtype = torch.float32
    head_dim: int = 32
    length: int = 64
    causal: bool = True
    rate: float = 1e-3
    target: str = "noise"
    weights: float | None = None  # standard deviation at the start; None: PyTorch's
    loss_scale: float = 1
    batch: int = 4
    heads: int = 2
    layers: int = 2


TRAININGS = [
    Training("fp32"),
    Training("fp32, 8 wide", head_dim=8, length=32),
    Training("fp32, 64 wide, random targets", head_dim=64, causal=False, target="random"),
    Training("fp32, flat scores", head_dim=16, weights=0.02),
    Training("fp32, tiny gradients", loss_scale=1e-12),
    Training("fp32, converged", rate=3e-3, target="fixed"),
    Training("fp32, saturated", rate=0.1, target="fixed"),
    Training("bf16", dtype=torch.bfloat16),
    Training("bf16, flat scores", dtype=torch.bfloat16, head_dim=16, weights=0.02),
    Training("bf16, converged", dtype=torch.bfloat16, rate=3e-3, target="fixed"),
    Training("bf16, saturated", dtype=torch.bfloat16, rate=0.1, target="fixed"),
    Training("fp16", dtype=torch.float16),
]
HAS_LSE = 1  # all slices have a log-sum-exp


def inputs(situation: Situation, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Query, key, value and gradient of the output. Keys and values are repeated for each query head of a group."""

    def normal(heads: int, length: int) -> torch.Tensor:
        return torch.randn(situation.batch, heads, length, HEAD_DIM, generator=generator)

    q, grad = normal(situation.heads, situation.queries), normal(situation.heads, situation.queries)
    k, v = normal(situation.kv_heads, situation.keys), normal(situation.kv_heads, situation.keys)
    q, k = q * math.sqrt(situation.logits), k * math.sqrt(situation.logits)
    if situation.memorised:
        memorised_key = torch.randint(situation.keys, (situation.queries,), generator=generator)  # one for each query
        # The factor 4 makes the scores of these keys much larger than the others.
        q = 4 * k[:, :, memorised_key].repeat_interleave(situation.heads // situation.kv_heads, 1)
    if situation.offset:  # one dimension adds the same number to all scores
        q[..., 0], k[..., 0] = 1, situation.offset * math.sqrt(HEAD_DIM)
    k, v = (t.repeat_interleave(situation.heads // situation.kv_heads, 1) for t in (k, v))
    return tuple(t.bfloat16().contiguous() for t in (q, k, v, grad))


def make_call(situation: Situation, generator: torch.Generator, scale_error: float = 0) -> Call:
    """Computes a call. `scale_error`: relative error of the scale that the kernel uses. Call.scale is the right one."""
    q, k, v, grad = inputs(situation, generator)
    scale = 1 / math.sqrt(HEAD_DIM)
    used_scale = scale * (1 + scale_error)
    if situation.blocks == 1:
        out, lse = FORWARD(q, k, v, 0.0, situation.causal, scale=used_scale)[:2]
        call = Call(q, k, v, grad, situation.causal, scale, out, lse)
        call.given_out, call.given_lse = out, lse
    else:  # as in torch's _templated_ring_attention: the backward of a block gets out and log-sum-exp of all blocks
        parts = [
            FORWARD(q, key.contiguous(), value.contiguous(), 0.0, False, scale=used_scale)[:2]
            for key, value in zip(k.chunk(situation.blocks, 2), v.chunk(situation.blocks, 2), strict=True)
        ]
        all_lse = torch.logsumexp(torch.stack([lse for _, lse in parts]), 0)
        all_out = sum(out.float() * torch.exp(lse - all_lse)[..., None] for out, lse in parts).bfloat16()
        k, v = (t.chunk(situation.blocks, 2)[0].contiguous() for t in (k, v))
        call = Call(q, k, v, grad, False, scale, *parts[0])
        call.given_out, call.given_lse = all_out, all_lse
    results = BACKWARD(grad, q, k, v, call.given_out, call.given_lse, 0.0, call.causal, scale=used_scale)
    call.grad_query = results[0]
    call.grad_key, call.grad_value = (of_kv_heads(t, situation) for t in results[1:])
    return call


def of_kv_heads(gradient: torch.Tensor, situation: Situation) -> torch.Tensor:
    """The gradient of each kv-head: the sum over the query heads of its group, in fp32."""
    group = situation.heads // situation.kv_heads
    return gradient.unflatten(1, (situation.kv_heads, group)).float().sum(2).bfloat16()


# A function that makes a wrong result from a correct one. It takes random numbers from the generator.
Wrong = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def random_error(share: float) -> Wrong:
    """Adds normal noise of `share` times the root mean square of each row."""

    def wrong(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        size = x.float().pow(2).mean(-1, keepdim=True).sqrt()
        return (x.float() + share * size * torch.randn(x.shape, generator=generator)).bfloat16()

    return wrong


def one_sided(ulps: float) -> Wrong:
    """Moves each element away from zero, by `ulps` spacings of the format on average (adds to the bits)."""

    def wrong(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        whole = math.floor(ulps)
        count = whole + (torch.rand(x.shape, generator=generator) < ulps - whole).to(torch.int16)
        return (x.contiguous().view(torch.int16) + count).view(torch.bfloat16)

    return wrong


def too_large(share: float) -> Wrong:
    return lambda x, _generator: (x.float() * (1 + share)).bfloat16()


def wrong_tile(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Replaces the second tile of 64 positions by the first. A short tensor is divided into two tiles."""
    x = x.clone()
    tile = min(64, x.shape[2] // 2)
    x[:, :, tile : 2 * tile] = x[:, :, :tile]
    return x


def one_row(value: float) -> Wrong:
    """Sets all elements of a random row to `value`."""

    def wrong(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        x = x.clone()
        x[:, :, int(torch.randint(x.shape[2], (1,), generator=generator))] = value
        return x

    return wrong


@dataclass
class Error:
    """An error of a kernel, a row of the tables."""

    name: str
    wrong: Wrong | None = None  # changes each of TENSORS
    scale: float = 0  # relative error of the scale
    unmasked: bool = False  # the causal mask is ignored in the last row of each tile of 64
    bound: int | None = None  # sampled calls within which the error should be found; None: no limit


ERRORS = [
    *(
        Error(f"random {share:g} %", random_error(share / 100), bound=8 if share >= 5 else None)
        for share in (0.5, 1, 2, 5, 20)
    ),
    *(
        Error(f"one-sided {ulps:g} ulp", one_sided(ulps), bound=64 if ulps >= 1 else None)
        for ulps in (0.25, 0.5, 1, 2, 4, 8)
    ),
    Error("one wrong tile", wrong_tile, bound=8),
    Error("mask dropped in one row of 64", unmasked=True, bound=8),
    Error("scale 1 % off", scale=0.01, bound=8),
    Error("result 1 % too large", too_large(0.01), bound=64),
    Error("NaN in one row", one_row(math.nan), bound=8),
    Error("one row left out", one_row(0), bound=8),
]


def unmask(call: Call, situation: Situation) -> None:
    """Makes the results of a causal call wrong, as if row 63 of each 64 saw all keys. In the gradients of keys and
    values, replaces the right contribution of these rows by the wrong one."""
    rows = slice(63, None, 64)
    grad = torch.zeros_like(call.grad)
    grad[:, :, rows] = call.grad[:, :, rows]
    right = BACKWARD(grad, call.q, call.k, call.v, call.out, call.lse, 0.0, True, scale=call.scale)
    out, lse = FORWARD(call.q, call.k, call.v, 0.0, False, scale=call.scale)[:2]
    wrong = BACKWARD(grad, call.q, call.k, call.v, out, lse, 0.0, False, scale=call.scale)
    call.out, call.grad_query = call.out.clone(), call.grad_query.clone()
    call.out[:, :, rows], call.grad_query[:, :, rows] = out[:, :, rows], wrong[0][:, :, rows]
    key, value = (of_kv_heads(w.float() - r.float(), situation) for w, r in zip(wrong[1:], right[1:], strict=True))
    call.grad_key, call.grad_value = call.grad_key + key, call.grad_value + value


def wrong_call(situation: Situation, error: Error, generator: torch.Generator) -> Call:
    call = make_call(situation, generator, error.scale)
    if error.wrong:
        for name in TENSORS:
            setattr(call, name, error.wrong(getattr(call, name), generator))
    if error.unmasked:
        unmask(call, situation)
    return call


class Judge:
    """Judges slices with the agent's code, in a separate process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [BUILD / "bin" / "bench_verdicts_judge"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __call__(
        self, call: Call, situation: Situation | Training, kind: int, layer: str, step: int, batch: int, kv_head: int
    ) -> dict[str, dict]:
        """Judges one slice of the given kind (see TENSORS). Returns for each tensor that the kind judges the output of
        judge_stream: ratios, biases, and the alarms of the layer after this slice."""
        group = situation.heads // (situation.kv_heads if isinstance(situation, Situation) else situation.heads)
        heads = range(kv_head * group, (kv_head + 1) * group)
        draw = torch.Generator().manual_seed(hash((step, batch, kv_head)) & 0xFFFFFFFF)  # chooses the positions
        arrays = (columns_of if kind == 2 else rows_of)(call, kind, batch, kv_head, heads, draw)
        keys = call.q.shape[2] if kind == 2 else call.k.shape[2]  # for kind 2 the field has the number of queries
        header = struct.pack(  # struct Header in judge_stream.cpp
            "<32s8I3qdqq", layer.encode(), kind, FORMATS[call.q.dtype], len(arrays[0]), keys, call.q.shape[-1],
            call.v.shape[-1], HAS_LSE, group, step, batch, kv_head, call.scale, call.k.shape[2],
            nonfinite_out(call, kind, batch, heads, draw),
        )  # fmt: skip
        self.process.stdin.write(header)
        for array in arrays:
            data = array.contiguous().view(torch.uint8).numpy().tobytes()
            self.process.stdin.write(data + bytes(-len(data) % 8))
        self.process.stdin.flush()
        result = json.loads(self.process.stdout.readline())
        return result if kind == 2 else {tuple(TENSORS)[kind]: result}  # kinds 0 and 1 judge one tensor each


def nonfinite_out(call: Call, kind: int, batch: int, heads: range, draw: torch.Generator) -> int:
    """The number of NaN and Inf in the output of the first head. Like the monitor, counts it in half of the forward
    calls. 0 if it is not counted, or if an input is not finite."""
    if kind != 0 or float(torch.rand(1, generator=draw)) < 0.5:
        return 0
    inputs = (call.q[batch, heads[0]], call.k[batch, heads[0]], call.v[batch, heads[0]])
    if not all(bool(each.isfinite().all()) for each in inputs):
        return 0
    return int((~call.out[batch, heads[0]].isfinite()).sum())


def strata(length: int, count: int, draw: torch.Generator) -> list[int]:
    """A random position in each of `count` equal parts, as the monitor chooses them."""
    part = length / count
    return [int(part * n + part * float(torch.rand(1, generator=draw))) for n in range(count)]


def rows_of(
    call: Call, kind: int, batch: int, _kv_head: int, heads: range, draw: torch.Generator
) -> list[torch.Tensor]:
    """The arrays of a slice of query rows, as judge_stream reads them: the same positions of each head of a group."""
    positions = strata(call.q.shape[2], ROWS // len(heads), draw)
    keys_seen = [position + 1 if call.causal else call.k.shape[2] for _ in heads for position in positions]

    def rows(t: torch.Tensor) -> torch.Tensor:
        return torch.cat([t[batch, head][positions] for head in heads])

    out, lse = (call.given_out, call.given_lse) if kind == 1 else (call.out, call.lse)
    arrays = [torch.tensor(keys_seen, dtype=torch.int32), rows(call.q)]
    arrays += [call.k[batch, heads[0]], call.v[batch, heads[0]], rows(out), rows(lse).float()]
    return arrays + ([rows(call.grad), rows(call.grad_query)] if kind == 1 else [])


def columns_of(
    call: Call, _kind: int, batch: int, kv_head: int, heads: range, draw: torch.Generator
) -> list[torch.Tensor]:
    """The arrays of a slice of key positions of one kv-head, as judge_stream reads them. Has all query rows of its
    group."""
    positions = strata(call.k.shape[2], ROWS, draw)
    group = slice(heads[0], heads[-1] + 1)
    # For each key position, the first query that sees it.
    first_query = torch.tensor(positions if call.causal else [0] * ROWS, dtype=torch.int32)
    rows = [t[batch, group] for t in (call.q, call.given_out, call.grad, call.given_lse.float())]
    keys = [call.k[batch, heads[0]][positions], call.v[batch, heads[0]][positions]]
    gradients = [call.grad_key[batch, kv_head], call.grad_value[batch, kv_head]]
    chosen = [t[positions] for t in gradients]
    return [first_query, *rows, *keys, *chosen, *gradients, call.grad_query[batch, group]]


Found = dict[str, int | None]  # by tensor: sampled calls until an alarm; None: more than MOST_CALLS


def calls_until_found(judge: Judge, situation: Situation, error: Error, seed: int) -> Found:
    """One trial: wrong calls of one layer, until each tensor has an alarm."""
    generator = torch.Generator().manual_seed(seed)
    found: Found = dict.fromkeys(TENSORS)
    for step in range(1, MOST_CALLS + 1):
        call = wrong_call(situation, error, generator)
        batch, kv_head = (
            int(torch.randint(n, (1,), generator=generator)) for n in (situation.batch, situation.kv_heads)
        )
        # The kinds of slices that judge the tensors without an alarm so far.
        for kind in {TENSORS[name] for name, calls in found.items() if calls is None}:
            # Each trial has its own layer name, since judge_stream keeps the results of a layer.
            for name, result in judge(call, situation, kind, f"{seed:x}", step, batch, kv_head).items():
                if result["alarms"] and found[name] is None:
                    found[name] = step
        if None not in found.values():
            break
    return found


@dataclass
class Cell:
    found: list[int | None]  # of each trial: sampled calls until an alarm; None: more than MOST_CALLS

    def text(self) -> str:
        if None in self.found:
            missed = self.found.count(None)
            return "no" if missed == len(self.found) else f"no in {missed} of {len(self.found)}"
        middle, worst = round(statistics.median(self.found)), max(self.found)
        return f"{middle}" if middle == worst else f"{middle} ({worst})"

    def within(self, bound: int) -> bool:
        return all(found is not None and found <= bound for found in self.found)


@dataclass
class Measured:
    error: Error
    situation: Situation
    cells: dict[str, Cell]  # one per tensor


def measure_errors(trials: int) -> Iterator[Measured]:
    judge, seed = Judge(), 0
    for error in ERRORS:
        for situation in SITUATIONS:
            if error.unmasked and not situation.causal:
                continue
            runs = []
            for _ in range(trials):
                seed += 1
                runs.append(calls_until_found(judge, situation, error, seed))
            yield Measured(error, situation, {name: Cell([run[name] for run in runs]) for name in TENSORS})


@dataclass
class Sound:
    """Results of judging correct calls."""

    slices: int = 0
    alarms: list[str] = field(default_factory=list)  # "tensor kind" of each alarm that began
    # By tensor: the largest ratio of an error to the error of correct fused attention.
    most: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TENSORS, 0.0))
    one_sided: float = 0  # the largest unexplained bias in ulp of bf16, of slices with a ratio above 2 (kOneSidedUlp)

    def add(self, results: dict[str, dict], active: dict[str, set]) -> None:
        """Adds the results of one slice. `active`: the alarms of its layer after the previous slice, by tensor."""
        self.slices += 1
        for name, result in results.items():
            self.most[name] = max(self.most[name], result["fused"] or 0)
            if (result["fused"] or 0) > 2:
                self.one_sided = max(self.one_sided, abs(result["one_sided"]))
            self.alarms += [f"{name} {alarm}" for alarm in set(result["alarms"]) - active.get(name, set())]
            active[name] = set(result["alarms"])


def measure_sound(situation: Situation, slices: int, seed: int) -> Sound:
    """Judges correct calls as calls of one layer. An alarm that stays over several slices counts once."""
    judge, generator, sound = Judge(), torch.Generator().manual_seed(seed), Sound()
    step, active = 0, {}
    while sound.slices < slices:
        call, step = make_call(situation, generator), step + 1
        for batch in range(situation.batch):
            for kv_head in range(situation.kv_heads):
                for kind in set(TENSORS.values()):
                    sound.add(judge(call, situation, kind, "layer", step, batch, kv_head), active)
    return sound


class Attention(torch.autograd.Function):
    """PyTorch's CPU kernel. Appends each call to `calls`, with the number of its layer, when its backward has run."""

    calls: list[tuple[int, Call]] = []

    @staticmethod
    def forward(context, q, k, v, causal, layer):  # noqa: ANN001, ANN205
        out, lse = FORWARD(q, k, v, 0.0, causal)[:2]
        context.call, context.layer = Call(q, k, v, q, causal, q.shape[-1] ** -0.5, out, lse), layer
        return out

    @staticmethod
    def backward(context, grad):  # noqa: ANN001, ANN205
        call = context.call
        call.grad, call.given_out, call.given_lse = grad.contiguous(), call.out, call.lse
        gradients = BACKWARD(call.grad, call.q, call.k, call.v, call.out, call.lse, 0.0, call.causal)
        call.grad_query, call.grad_key, call.grad_value = gradients
        Attention.calls.append((context.layer, call))
        return *gradients, None, None


class Block(nn.Module):
    def __init__(self, training: Training, layer: int) -> None:
        super().__init__()
        self.training_of, self.layer, width = training, layer, training.heads * training.head_dim
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        if training.weights is not None:
            for linear in (self.qkv, self.out):
                nn.init.normal_(linear.weight, std=training.weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        of = self.training_of
        shape = (of.batch, of.length, of.heads, of.head_dim)
        q, k, v = (
            y.view(shape).transpose(1, 2).to(of.dtype).contiguous() for y in self.qkv(x).split(x.shape[-1], dim=2)
        )
        attended = Attention.apply(q, k, v, of.causal, self.layer)
        return x + self.out(attended.to(x.dtype).transpose(1, 2).flatten(2))


def steps_of(training: Training, seed: int) -> Iterator[list[tuple[int, Call]]]:
    """Trains, without an end. Yields the calls of each step."""
    torch.manual_seed(seed)
    model = nn.Sequential(*(Block(training, layer) for layer in range(training.layers)))
    optimizer = torch.optim.AdamW(model.parameters(), training.rate)

    def batch() -> torch.Tensor:
        return torch.randn(training.batch, training.length, training.heads * training.head_dim)

    fixed = batch()
    while True:
        x = fixed if training.target == "fixed" else batch()
        target = {"noise": x.roll(1, 1), "fixed": x.flip(1), "random": batch()}[training.target]
        Attention.calls.clear()
        (functional.mse_loss(model(x), target) * training.loss_scale).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield Attention.calls


def measure_training(training: Training, slices: int, seed: int) -> Sound:
    """Judges the calls of a training. Each head of each batch element counts as a layer of its own, so that a layer has
    one slice of each kind a step, as in a training under observation."""
    judge, sound, active = Judge(), Sound(), {}
    for step, calls in enumerate(steps_of(training, seed)):
        for layer, call in calls:
            for batch in range(training.batch):
                for head in range(training.heads):
                    for kind in set(TENSORS.values()):
                        label = f"{layer}.{batch}.{head}"
                        sound.add(judge(call, training, kind, label, step, batch, head), active.setdefault(label, {}))
        if sound.slices >= slices:
            return sound
    raise AssertionError


def error_table(measured: list[Measured], name: str) -> list[str]:
    situations = [situation.name for situation in SITUATIONS]
    lines = ["| error | " + " | ".join(situations) + " |", "| --- |" + " --- |" * len(situations)]
    for error in ERRORS:
        row = {m.situation.name: m.cells[name].text() for m in measured if m.error is error}
        lines.append(f"| {error.name} | " + " | ".join(row.get(each, "-") for each in situations) + " |")
    return lines


def sound_table(results: list[tuple[Situation | Training, Sound]]) -> list[str]:
    lines = [
        "| situation | slices | alarms | largest ratio of out, dQ, dK, dV | one-sided error, ulp of bf16 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for situation, sound in results:
        name = f"training: {situation.name}" if isinstance(situation, Training) else situation.name
        alarms = f"{len(sound.alarms)}" + (f" ({', '.join(sorted(set(sound.alarms)))})" if sound.alarms else "")
        ratios = ", ".join(f"{most:.2f}" for most in sound.most.values())
        lines.append(f"| {name} | {sound.slices} | {alarms} | {ratios} | {sound.one_sided:.2g} |")
    return lines


def page(measured: list[Measured], sound: list[tuple[Situation | Training, Sound]], trials: int) -> str:
    """The text of docs/research.md with the blocks between its markers filled."""
    total, alarms = sum(s.slices for _, s in sound), sum(len(s.alarms) for _, s in sound)
    version = torch.__version__.split("+")[0]
    blocks = (
        {}
        if not measured
        else {
            "made": [
                f"PyTorch {version}, its CPU kernel, bf16, head dimension {HEAD_DIM}. Each number says",
                "how many sampled calls of a layer were judged when the alarm came: the median of the trials",
                f"({trials}), the worst one in brackets. After {MOST_CALLS} calls without an alarm: no.",
            ],
            **{name: error_table(measured, name) for name in TENSORS},
        }
    )
    blocks["sound"] = [f"{alarms} alarms over {total} slices.", "", *sound_table(sound)]
    return BLOCK.sub(
        lambda block: "\n".join([block[1], *blocks[block[2]], block[3]]) if block[2] in blocks else block[0],
        PAGE.read_text(),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer trials and slices")
    parser.add_argument("--trials", type=int, help="of each cell")
    parser.add_argument("--slices", type=int, help="of sound calls, over all situations")
    parser.add_argument("--sound", action="store_true", help="only calls of correct kernels")
    parser.add_argument("-o", metavar="FILE", help="write the page here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trials = options.trials or (2 if options.short else 5)
    slices = options.slices or (1100 if options.short else 11000)  # 100 or 1000 for each situation
    all_situations = SITUATIONS + SOUND_ONLY
    sound = []
    for n, situation in enumerate(all_situations):
        # 1000 + n: a seed that measure_errors() does not use, which counts its trials from 1
        sound.append((situation, measure_sound(situation, slices // len(all_situations), 1000 + n)))
        print(sound_table(sound)[-1], flush=True)
    for n, training in enumerate(TRAININGS):
        sound.append((training, measure_training(training, slices // len(all_situations), 2000 + n)))
        print(sound_table(sound)[-1], flush=True)
    measured, missed = [], []
    for each in measure_errors(trials) if not options.sound else []:
        measured.append(each)
        texts = ", ".join(f"{name} {cell.text()}" for name, cell in each.cells.items())
        print(f"{each.error.name}, {each.situation.name}: {texts}", flush=True)
        for name, cell in each.cells.items():
            if each.error.bound and not cell.within(each.error.bound):
                cell_name = f"{each.error.name}, {each.situation.name}, {name}"
                missed.append(f"{cell_name}: {cell.text()} (bound {each.error.bound})")
    if options.o:
        pathlib.Path(options.o).write_text(page(measured, sound, trials))
    print(f"{sum(len(s.alarms) for _, s in sound)} alarms over {sum(s.slices for _, s in sound)} sound slices")
    print(*(["not within the bound:", *missed] if missed else ["every error was found within its bound"]), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
