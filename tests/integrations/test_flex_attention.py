"""Eager calls of torch's flex_attention: described with the mask that `mask_mod` returns. torch refuses gradients on
the CPU, so the trainings here replace its check; all else is torch's.
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
    score=reasons(causal, score_mod=lambda score, b, h, i, j: score + (j - i)), blocks=reasons(block_mask=blocks),
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


def test_a_compiled_graph_is_the_same_and_unseen(trainer) -> None:
    program = f"""{SET_UP}
graphs = []
def keep(module, inputs): graphs.append(module.print_readable(False)); return module
q, (k, v), block_mask = query().detach(), [t.detach() for t in heads(4)], mask_of(of_document)
def call(q, k, v): return flex.flex_attention(q, k, v, block_mask=block_mask)
out = torch.compile(call, backend=keep, fullgraph=True)(q, k, v)
import hashlib, re
print(json.dumps([len(graphs), re.sub("#.*", "", graphs[-1]), hashlib.sha256(out.numpy().tobytes()).hexdigest()]))
"""
    plain = "import json, torch\ntorch.manual_seed(0); torch.set_num_threads(1)\ndef events(): return []\n"
    assert trainer(program) == trainer(plain + program, monitored=False)
