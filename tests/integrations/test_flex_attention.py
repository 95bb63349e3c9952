"""Calls of torch's flex_attention, eager and compiled: described with the mask that `mask_mod` returns. torch refuses
gradients on the CPU, so the trainings here replace its check; all else is torch's.
"""

from __future__ import annotations

import pytest
from torch_version import TORCH

pytestmark = [pytest.mark.quick, pytest.mark.skipif(TORCH < (2, 13), reason="the eager backward is that of torch 2.13")]

MASK, UNKNOWN = 6, 10  # FORESHOCK_SKIP_... of hook.h
FLOAT32 = 2.0**-22  # sums of a row add up what is rounded to fp32

SET_UP = """
import warnings; warnings.simplefilter("ignore")
import torch.nn.attention.flex_attention as flex
flex._validate_device = lambda *tensors: None
linear = torch.nn.Linear(32, 32)
def query(): return linear(torch.randn(2, 16, 32)).view(2, 16, 4, 8).transpose(1, 2)
def heads(n): return [torch.randn(2, n, 16, 8, requires_grad=True) for _ in range(2)]
def mask_of(mask_mod, heads=None):
    return flex.create_block_mask(mask_mod, 2, heads, 16, 16, device="cpu", BLOCK_SIZE=8)
document = torch.tensor([[0] * 5 + [1] * 11, [0] * 8 + [1] * 8])
def causal(b, h, i, j): return i >= j
def window(b, h, i, j): return (i >= j) & (i - j < 4)
def of_document(b, h, i, j): return (i >= j) & (document[b, i] == document[b, j])
def of_head(b, h, i, j): return (i >= j) | (h == 2)
def fingerprint(t): return (t.double().flatten() * torch.arange(1, t.numel() + 1, dtype=torch.double)).sum().item()
def rows(mask_mod=None, n=4, loss=lambda out, more: out.square().sum(), **more):
    k, v = heads(n); events()
    block_mask = mask_of(mask_mod) if mask_mod else more.pop("block_mask", None)
    result = flex.flex_attention(query(), k, v, block_mask=block_mask, enable_gqa=n < 4, **more)
    out, other = result if isinstance(result, tuple) else (result, None)
    loss(out, other).backward()
    found = [row for row in events() if row["event"] in ("leave", "skip")]
    for row in found[1:]: row["truth"] = [fingerprint(k.grad), fingerprint(v.grad)]
    return found
"""


def test_eager_calls_are_described_both_ways(trainer) -> None:
    found, layer = trainer(f"""{SET_UP}
found = [rows(), rows(causal), rows(window, n=2, scale=0.2), rows(of_document), rows(block_mask=mask_of(of_head, 4)),
         rows(causal, return_aux=flex.AuxRequest(lse=True))]
print(json.dumps([found, linear.weight._cdata]))
""")
    for ahead, back in found:
        assert [ahead["op"], back["op"]] == ["foreshock::flex_attention", "foreshock::flex_attention_backward"]
        assert (ahead["layer"], back["layer"]) == (layer, layer)
        # Computed in fp32: an error of 2^-24 in each of a few dozen operations on a row.
        assert 0 <= ahead["errors"]["out"] <= 64 * FLOAT32
        assert 0 <= back["errors"]["grad_query"] <= 64 * FLOAT32
        assert 0 <= back["errors"]["lse"] <= 16 * FLOAT32
        for tensor, truth in zip(("grad_key", "grad_value"), back["truth"], strict=True):
            assert abs(back[tensor]["fingerprint"] - truth) <= 1e-5 * (1 + abs(truth)), tensor
    assert [bool(ahead["mask"]) for ahead, _ in found] == [False, True, True, True, True, True]
    assert found[2][0]["scale"] == 0.2
    assert 0 <= found[5][0]["errors"]["lse"] <= 16 * FLOAT32  # the one that the function returned


def test_other_calls_have_a_reason(trainer) -> None:
    """A mask_mod that fails when it is evaluated again, or draws random numbers, changes nothing for the training."""
    seen, state = trainer(f"""{SET_UP}
from torch.overrides import TorchFunctionMode
class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None): return function(*args, **(kwargs or {{}}))
def reasons(*more, **named): return [row.get("reason", -1) for row in rows(*more, **named)]
blocks = flex.BlockMask.from_kv_blocks(
    torch.ones(2, 1, 2, dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32).repeat(2, 1, 2, 1), BLOCK_SIZE=8)
aux = dict(return_aux=flex.AuxRequest(lse=True))
with torch.no_grad(): hidden = mask_of(lambda b, h, i, j: (i >= j) & (i != 3))
seen = dict(
    score=reasons(causal, score_mod=lambda score, b, h, i, j: score * 2), blocks=reasons(block_mask=blocks),
    no_key=reasons(block_mask=hidden), of_lse=reasons(causal, loss=lambda out, aux: out.sum() + aux.lse.sum(), **aux))
calls = []
def fails(b, h, i, j):
    if calls: raise KeyError("mine")
    return i >= j
block_mask = mask_of(fails)
original = flex.create_mask
def armed(*more, **named):
    calls.append(1)
    try: return original(*more, **named)
    finally: calls.clear()
flex.create_mask = armed
seen["fails"] = reasons(block_mask=block_mask)
flex.create_mask = original
state = torch.get_rng_state()
def random(b, h, i, j): return (i >= j) | ((torch.rand(()) > 2) if calls else False)
block_mask = mask_of(causal); block_mask.mask_mod = lambda b, h, i, j: (torch.rand(()) > 2) | (i >= j)
from foreshock_torch import flex as described
state = torch.get_rng_state(); failed = False
try: described._visible(block_mask, torch.zeros(2, 4, 16, 8), torch.zeros(2, 4, 16, 8))
except RuntimeError: failed = True
state = failed and torch.equal(state, torch.get_rng_state())
q, (k, v), block_mask = query(), heads(4), mask_of(causal); events()
with Mode(): flex.flex_attention(q, k, v, block_mask=block_mask)
seen["mode"] = [row.get("reason", -1) for row in events() if row["event"] in ("leave", "skip")]
print(json.dumps([seen, state]))
""")
    assert seen == {
        "score": [MASK], "blocks": [MASK], "no_key": [-1, -1], "of_lse": [-1, UNKNOWN], "fails": [UNKNOWN],
        "mode": [UNKNOWN],
    }  # fmt: skip
    assert state


SCORES = """
slopes, table = torch.tensor([0.5, 0.25, 0.125, 0.0625]), torch.randn(4, 31, requires_grad=True)
def alibi(score, b, h, i, j): return score - slopes[h] * (i - j)
def relative(score, b, h, i, j): return score + table[h, i - j + 15]
def hides(score, b, h, i, j): return torch.where(i - j < 4, score, float("-inf"))
def capped(score, b, h, i, j): return 0.5 * torch.tanh(score / 0.5)
def capped_with_bias(score, b, h, i, j): return 0.5 * torch.tanh(score / 0.5) - slopes[h] * (i - j)
"""


def test_functions_of_scores_that_add_or_cap_are_described(trainer) -> None:
    found, others = trainer(f"""{SET_UP}{SCORES}
found = [rows(mask, score_mod=score, n=n)
         for score in (alibi, relative, hides, capped, capped_with_bias) for mask, n in ((None, 4), (of_document, 2))]
def scaled(score, b, h, i, j): return score * 1.0001
def bent(score, b, h, i, j): return score + 1e-3 * score.square() * (b == 1) * (h == 3) * (i == 15) * (j == 2)
def narrow(score, b, h, i, j): return score.float() + 0.1
def bias_first(score, b, h, i, j): return 0.5 * torch.tanh((score - slopes[h] * (i - j)) / 0.5)
def cap_of_head(score, b, h, i, j): return (h + 1) * torch.tanh(score / (h + 1))
def reasons(score): return [row.get("reason", -1) for row in rows(causal, score_mod=score)]
print(json.dumps([found, [reasons(score) for score in (scaled, bent, narrow, bias_first, cap_of_head)]]))
""")
    for ahead, back in found:
        assert [ahead["op"], back["op"]] == ["foreshock::flex_attention", "foreshock::flex_attention_backward"]
        assert 0 <= ahead["errors"]["out"] <= 64 * FLOAT32
        assert 0 <= back["errors"]["grad_query"] <= 64 * FLOAT32
        for tensor, truth in zip(("grad_key", "grad_value"), back["truth"], strict=True):
            assert abs(back[tensor]["fingerprint"] - truth) <= 1e-5 * (1 + abs(truth)), tensor
    assert [ahead["soft_cap"] for ahead, _ in found] == [0] * 6 + [0.5] * 4
    assert others == [[MASK]] * 5


COMPILED = """
import hashlib
torch.manual_seed(1)
k, v = [torch.randn(2, 4, 128, 16) for _ in range(2)]
document = torch.tensor([[0] * 50 + [1] * 78, [0] * 8 + [1] * 120])
slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
weight = torch.randn(64, 64) / 8
def window(b, h, i, j): return (i >= j) & (i - j < 40)
masks = [flex.create_block_mask(m, 2, None, 128, 128, device="cpu", BLOCK_SIZE=32) for m in (of_document, window)]
def model(x, masks):
    for mask, score in zip(masks, (None, alibi)):
        q = (x @ weight).view(2, 128, 4, 16).transpose(1, 2) * 1.5
        out = flex.flex_attention(q, k, v, block_mask=mask, score_mod=score)
        x = x + out.transpose(1, 2).reshape(2, 128, 64).relu()
    return x
def alibi(score, b, h, i, j): return score - slopes[h] * (i - j)
def digest(t): return hashlib.sha256(t.detach().numpy().tobytes()).hexdigest()
x = torch.randn(2, 128, 64); compiled = torch.compile(model, fullgraph=True); events()
with torch.no_grad(): bits = [digest(compiled(x, masks)) for _ in range(2)]
print(json.dumps([bits, [row for row in events() if row["event"] in ("leave", "skip")]]))
"""
PLAIN = """
import json, torch
torch.manual_seed(0); torch.set_num_threads(1)
def events(): return []
"""


def test_compiled_calls_are_described_and_have_the_same_bits(trainer) -> None:
    """With torch's own kernels. The second process has the first one's cache of compiled code, and no use for it."""
    bits, rows = trainer(SET_UP + COMPILED)
    assert bits == trainer(PLAIN + SET_UP + COMPILED, monitored=False)[0]
    assert [row["op"] for row in rows] == ["foreshock::flex_attention"] * 4
    for row in rows:
        assert row["mask"]
        assert 0 <= row["errors"]["out"] <= 64 * FLOAT32


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("aot_eager_default_partitioner", marks=pytest.mark.long)]
)
def test_compiled_backward_passes_are_described(trainer, backend) -> None:
    """With the operator's own backward pass: torch has no kernel for it on the CPU."""
    program = f"""{SET_UP}{SCORES}
results = []
def attend(x, k, v, block_mask, score_mod, **more):
    return flex.flex_attention(linear(x).view(2, 16, 4, 8).transpose(1, 2), k, v, score_mod, block_mask, **more)
compiled = torch.compile(attend, backend="{backend}", fullgraph=True)
def call(mask_mod=None, score_mod=None, loss=lambda out: out.square().sum(), **more):
    k, v = heads(4); events(); linear.zero_grad()
    loss(compiled(torch.randn(2, 16, 32), k, v, mask_mod and mask_of(mask_mod), score_mod, **more)).backward()
    bits = [fingerprint(t) for t in (k.grad, v.grad, linear.weight.grad)]
    found = [row for row in events() if row["event"] in ("leave", "skip") and row["op"].startswith("foreshock")]
    results.append([found, bits])
call(); call(of_document); call(window, alibi); call(None, capped)
call(causal, lambda score, b, h, i, j: score * 2)
call(causal, return_aux=flex.AuxRequest(lse=True), loss=lambda both: both[0].sum() + both[1].lse.sum())
print(json.dumps(results))
"""
    results = trainer(program)
    assert [bits for _, bits in results] == [bits for _, bits in trainer(PLAIN + program, monitored=False)]
    for found, (of_key, of_value, _) in results[:4]:
        ahead, back = found
        assert [ahead["op"], back["op"]] == ["foreshock::flex_attention", "foreshock::flex_attention_backward"]
        assert 0 <= ahead["errors"]["out"] <= 64 * FLOAT32
        assert 0 <= back["errors"]["grad_query"] <= 64 * FLOAT32
        assert 0 <= back["errors"]["lse"] <= 16 * FLOAT32
        for tensor, truth in (("grad_key", of_key), ("grad_value", of_value)):
            assert abs(back[tensor]["fingerprint"] - truth) <= 1e-5 * (1 + abs(truth)), tensor
    assert [row.get("reason", -1) for row in results[4][0]] == [MASK, MASK]
    assert [row.get("reason", -1) for row in results[5][0]] == [-1, UNKNOWN]  # the loss uses the log-sum-exp too


def test_compiled_functions_that_eager_models_call_have_layers_in_both_passes(trainer) -> None:
    """In the backward pass, the graph has views of its inputs without history."""
    program = f"""{SET_UP}
from foreshock_torch.unseen import attention_unseen
compiled = torch.compile(flex.flex_attention, backend="aot_eager")
others = [torch.nn.Linear(32, 32), torch.nn.Linear(32, 96)]
def split(t): return t.view(2, 16, 4, 8).transpose(1, 2)
def views(x): return split(linear(x)), split(others[0](x)), split(others[0](x))
def computed(x): return split(linear(x)).cos(), split(others[0](x)).sin(), split(others[0](x))
def packed(x): return [split(part) for part in others[1](x).chunk(3, -1)]
def detached(x): return split(linear(x)).detach(), split(others[0](x)), split(others[0](x))
def sum_of(out, more): return out.square().sum()
def both(out, more): return out.sum() + more.lse.sum()
def call(make, loss=sum_of, **more):
    q, k, v = make(torch.randn(2, 16, 32)); events()
    result = compiled(q, k, v, block_mask=mask_of(causal), **more)
    out, other = result if isinstance(result, tuple) else (result, None)
    loss(out, other).backward()
    return [[row["op"], row.get("layer"), row.get("reason"), row.get("errors")]
            for row in events() if row["event"] in ("leave", "skip")]
aux = dict(return_aux=flex.AuxRequest(lse=True))
found = [call(views), call(computed), call(packed), call(detached), call(views, return_lse=True), call(views, **aux),
         call(views, loss=both, **aux)]
print(json.dumps([found, [each.weight._cdata for each in (linear, others[1])], attention_unseen()]))
"""
    found, (query, qkv), unseen = trainer(program)
    for ahead, back in found:
        assert [ahead[0], back[0]] == ["foreshock::flex_attention", "foreshock::flex_attention_backward"]
    layers = [[query] * 2, [query] * 2, [qkv] * 2, [0] * 2, [query] * 2, [query] * 2]
    assert [[ahead[1], back[1]] for ahead, back in found[:-1]] == layers
    for ahead, back in found[:-1]:
        assert 0 <= ahead[3]["out"] <= 64 * FLOAT32
        assert 0 <= back[3]["grad_query"] <= 64 * FLOAT32
    assert found[-1][1][2] == UNKNOWN  # gradients of the log-sum-exp too
    assert unseen == []


def test_functions_that_were_imported_or_compiled_before_the_start_are_seen(trainer) -> None:
    found, same = trainer(f"""{SET_UP}
import inspect, pickle
from foreshock_torch import seams
original = flex.flex_attention = inspect.unwrap(flex.flex_attention)  # as before the start
compiled = torch.compile(original, backend="aot_eager")
before, signature = compiled(query(), *heads(4)), inspect.signature(original); compiled(query(), *heads(4))
seams._active._wrap(flex, is_in_use=True)
found = []
for function in (original, compiled):
    events(); function(query(), *heads(4)).square().sum().backward()
    found.append([row["op"] for row in events() if row["event"] == "leave"])
same = [flex.flex_attention is original, inspect.signature(original) == signature, original.__name__,
        pickle.loads(pickle.dumps(original)) is original, inspect.getsource(original).splitlines()[0]]
print(json.dumps([found, same]))
""")
    assert found == [["foreshock::flex_attention", "foreshock::flex_attention_backward"]] * 2
    assert same == [True, True, "flex_attention", True, "def flex_attention("]


def test_graphs_with_parts_to_recompute_compile_with_the_default_partitioner(trainer) -> None:
    """torch refuses an operation like ours in such a graph, so it has none, and the attention is named."""
    program = f"""{SET_UP}
from torch.utils.checkpoint import checkpoint
def attend(x): return flex.flex_attention(*[linear(x).view(2, 16, 4, 8).transpose(1, 2)] * 3)
def written(x): return (linear(x) @ linear(x).mT).softmax(-1) @ linear(x)
bits = []
for function in (attend, written):
    x = torch.randn(2, 16, 32, requires_grad=True)
    compiled = torch.compile(lambda x: checkpoint(function, x.cos(), use_reentrant=False), backend=BACKEND)
    compiled(x).square().sum().backward(); bits.append(fingerprint(x.grad))
"""
    program = program.replace("BACKEND", '"aot_eager_default_partitioner"')
    bits, unseen = trainer(f"""{program}
from foreshock_torch.unseen import attention_unseen
print(json.dumps([bits, attention_unseen()]))
""")
    assert bits == trainer(f"{PLAIN}{program}print(json.dumps(bits))", monitored=False)
    assert unseen == [["flex_attention", 1], ["compiled: checkpoints, default partitioner", 1]]


def test_compiled_calls_that_are_not_sampled_run_no_python_of_ours(trainer) -> None:
    runs, calls = trainer(f"""{SET_UP}
from foreshock_torch import flex_graph
runs, kernel = [], flex_graph._Report.__call__
def counted(self, *more): runs.append(1); return kernel(self, *more)
flex_graph._Report.__call__ = counted
@torch.compile(backend="aot_eager", fullgraph=True)
def attend(x, k, v): return flex.flex_attention(linear(x).view(2, 16, 4, 8).transpose(1, 2), k, v)
def step():
    before = len(runs); events(); attend(torch.randn(2, 16, 32), *heads(4)).square().sum().backward()
    return [len(runs) - before, [row["event"] for row in events() if row.get("op", "").startswith("foreshock::flex")]]
step(); results = []
for on in (0, 1, 0):
    _fake.fake_sample(on); results.append(step())
print(json.dumps([*zip(*results)]))
""")
    assert runs == [0, 2, 0]
    assert calls == [["enter"] * 2, ["enter", "leave"] * 2, ["enter"] * 2]


def test_what_is_exported_or_run_without_a_graph_has_no_operation_of_ours(trainer) -> None:
    exported, named = trainer(f"""{SET_UP}
class Model(torch.nn.Module):
    def forward(self, q, k, v): return flex.flex_attention(q, k, v)
q = [torch.randn(1, 2, 128, 16) for _ in range(3)]
texts = [str(torch.export.export(Model(), tuple(q), strict=strict).graph) for strict in (False, True)]
torch.compile(Model(), backend="eager")(*q)
from foreshock_torch.unseen import attention_unseen
print(json.dumps([[("flex_attention" in text, "foreshock" in text) for text in texts], attention_unseen()]))
""")
    assert exported == [[True, False]] * 2
    assert named == [["flex_attention", 1]]
