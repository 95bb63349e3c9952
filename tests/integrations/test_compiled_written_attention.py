"""Attention that a module writes out in PyTorch operations, in compiled graphs: described from the graph, for both
passes, with the bits of the graph without our operations."""

from __future__ import annotations

import pytest
from torch_version import TORCH

pytestmark = [pytest.mark.skipif(TORCH < (2, 13), reason="the graphs are those of torch 2.13")]

FLOAT32 = 2.0**-22  # sums of a row add up what is rounded to fp32

MODEL = """
import hashlib, warnings; warnings.simplefilter("ignore")
class Attention(torch.nn.Module):
    def __init__(self, attend, heads=4, width=32):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.heads, self.attend = heads, attend
        self.register_buffer("hidden", torch.ones(16, 16).triu(1).bool())
        self.bias = torch.nn.Parameter(torch.randn(31, heads))
    def forward(self, x, more=None):
        batch, positions, width = x.shape
        q, k, v = (t.view(batch, positions, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, 2))
        return self.out(self.attend(self, q, k, v, more).transpose(1, 2).reshape(batch, positions, width))
def plain(m, q, k, v, more): return (q @ k.transpose(-2, -1) / 8**0.5).softmax(-1) @ v
def causal(m, q, k, v, more):
    scores = (q @ k.mT) * 8**-0.5
    return scores.masked_fill(m.hidden, float("-inf")).softmax(-1) @ v
def hugging_face(m, q, k, v, more):
    weights = torch.matmul(q, k.transpose(2, 3)) * 8**-0.5 + more
    return torch.matmul(torch.nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype), v)
def t5(m, q, k, v, more):
    place = torch.arange(16); bias = m.bias[place[:, None] - place + 15].permute(2, 0, 1)
    return (q @ k.mT + bias).float().softmax(-1).type_as(q) @ v
def capped(m, q, k, v, more):
    scores = torch.tanh(q @ k.mT * 8**-0.5 / 0.5) * 0.5
    return (scores + torch.where(m.hidden, torch.finfo(q.dtype).min, 0.0)).softmax(-1) @ v
def by_letters(m, q, k, v, more):
    weights = torch.einsum("bhid,bhjd->bhij", q, k).mul(0.3).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)
def dropped(m, q, k, v, more):
    weights = (q @ k.mT * 0.3).masked_fill(m.hidden, float("-inf")).softmax(-1)
    return torch.nn.functional.dropout(weights, 0.25) @ v
padding = torch.zeros(2, 1, 1, 16); padding[1, :, :, 11:] = torch.finfo(torch.float32).min
def digest(*tensors):
    state = hashlib.sha256()
    for t in tensors: state.update(t.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()
def train(attend, backend, more=None, dtype=torch.float32):
    torch.manual_seed(2); torch._dynamo.reset()
    model = Attention(attend).to(dtype)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    bits = []
    for _ in range(2):
        events()
        out = compiled(torch.randn(2, 16, 32, dtype=dtype), more)
        out.square().mean().backward()
        bits.append(digest(out, *(p.grad for p in model.parameters() if p.grad is not None)))
    return bits, [row for row in events() if row["event"] in ("leave", "skip")]
"""
PLAIN = """
import json, torch
torch.manual_seed(0); torch.set_num_threads(1)
def events(): return []
"""


def test_both_passes_are_described_with_the_same_bits(trainer) -> None:
    program = f"""{MODEL}
runs = [(plain, None), (causal, None), (hugging_face, padding), (t5, None), (capped, None), (by_letters, None),
        (dropped, None)]
print(json.dumps([train(attend, "aot_eager", more) for attend, more in runs]))
"""
    results = trainer(program)
    assert [bits for bits, _ in results] == [bits for bits, _ in trainer(PLAIN + program, monitored=False)]
    for _, found in results:
        ahead, back = found
        assert [ahead["op"], back["op"]] == ["foreshock::eager_attention", "foreshock::eager_attention_backward"]
        assert "reason" not in ahead
        assert "reason" not in back
        # Computed in fp32: an error of 2^-24 in each of a few dozen operations on a row.
        assert 0 <= ahead["errors"]["out"] <= 64 * FLOAT32
        assert 0 <= back["errors"]["grad_query"] <= 64 * FLOAT32
        assert 0 <= back["errors"]["lse"] <= 16 * FLOAT32
    assert [bool(ahead["mask"]) for _, (ahead, _) in results] == [False, True, True, True, True, False, True]


def test_a_wrong_output_is_no_error_of_the_backward_pass(trainer) -> None:
    found = trainer(f"""{MODEL}
library, products = torch.library.Library("aten", "IMPL"), []
def bmm(a, b):
    out = torch.stack([x.mm(y) for x, y in zip(a, b)])
    if a.dtype == torch.float32: products.append(1)  # those in fp64 are of foreshock
    return out * 1.05 if len(products) % 6 == 2 and a.dtype == torch.float32 else out
library.impl("bmm", bmm, "CPU")
print(json.dumps(train(plain, "aot_eager")[1]))
""")
    ahead, back = found
    assert 0.049 <= ahead["errors"]["out"] <= 0.051
    assert 0 <= back["errors"]["out"] <= 64 * FLOAT32
    assert 0 <= back["errors"]["grad_query"] <= 64 * FLOAT32


def test_bfloat16_is_described_with_the_same_bits(trainer) -> None:
    program = f"""{MODEL}
print(json.dumps([train(attend, "aot_eager", None, torch.bfloat16) for attend in (plain, causal, t5)]))
"""
    results = trainer(program)
    assert [bits for bits, _ in results] == [bits for bits, _ in trainer(PLAIN + program, monitored=False)]
    for _, found in results:
        assert [row["op"] for row in found] == ["foreshock::eager_attention", "foreshock::eager_attention_backward"]
        # Scores, weights and output are rounded to bf16, by 2^-9 each.
        assert 0 <= found[0]["errors"]["out"] <= 8 * 2.0**-9
        assert 0 <= found[1]["errors"]["grad_query"] <= 8 * 2.0**-9
