"""Attention that packages write out in torch operations: calls of Megatron-core's local spec and of x-transformers are
described if all their settings are understood. Their log-sum-exp is computed for the check of dK and dV.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
import written_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integrations" / "torch" / "python"))
from foreshock_torch import row_sums, sinks, sources  # noqa: E402
from foreshock_torch.providers import BOTTOM_RIGHT, NO_MASK, TOP_LEFT, Call, Sink  # noqa: E402
from foreshock_torch.tap import LAYOUTS  # noqa: E402

pytestmark = pytest.mark.quick

MASK, UNKNOWN = 6, 10  # FORESHOCK_SKIP_... of hook.h
FLOAT32 = 2.0**-22  # sums of a row add up what is rounded to fp32
ROUNDED = 64 * FLOAT32  # computed in fp32: an error of 2^-24 in each of a few dozen operations on a row

SET_UP = """
import sys, types; sys.path.insert(0, FOLDER)
import written_attention as written
Attend, Dot, Softmax = written.register()
linear = torch.nn.Linear(32, 32)
order = (0, 1, 2, 3)  # of the axes, which makes (batch, head, position, d)
def fingerprint(t):
    return (t.permute(order).double().flatten() * torch.arange(1, t.numel() + 1, dtype=torch.double)).sum().item()
def heads(n, keys=16): return [torch.randn(2, n, keys, 8, requires_grad=True) for _ in range(2)]
def query(): return linear(torch.randn(2, 16, 32)).view(2, 16, 4, 8).transpose(1, 2)
def rows(work, of_loss=lambda out, rest: out.square().sum()):
    events(); out, rest, k, v = work(); of_loss(out, rest).backward()
    found = [row for row in events() if row["event"] in ("leave", "skip")]
    for row in found[1:]: row["truth"] = [fingerprint(k.grad), fingerprint(v.grad)]
    return found
def attend(kv=None, mask=None, bias=None, settings={}, **more):
    k, v = kv or heads(4)
    return lambda: (*Attend(**settings)(query(), k, v, mask=mask, attn_bias=bias, **more), k, v)
visible = torch.ones(2, 16, dtype=torch.bool); visible[1, 11:] = False
left = torch.ones(2, 16, dtype=torch.bool); left[1, :3] = False
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("packages")
    written_attention.write(folder)
    return f"FOLDER = {str(folder)!r}\n{SET_UP}"


def assert_described(pair: list[dict], name: str, layer: int) -> None:
    ahead, back = pair
    assert [ahead["op"], back["op"]] == [f"foreshock::{name}", f"foreshock::{name}_backward"]
    assert (ahead["layer"], back["layer"]) == (layer, layer)
    assert 0 <= ahead["errors"]["out"] <= ROUNDED, ahead
    assert 0 <= back["errors"]["grad_query"] <= ROUNDED, back
    assert 0 <= back["errors"]["lse"] <= 16 * FLOAT32  # rounded once; the scores are a few units large
    for tensor, truth in zip(("grad_key", "grad_value"), back["truth"], strict=True):
        # The gradient of the whole training, which has one attention: at most the order of sums differs.
        assert abs(back[tensor]["fingerprint"] - truth) <= 1e-5 * (1 + abs(truth)), tensor


def test_calls_of_x_transformers_are_described_both_ways(packages, trainer) -> None:
    found, layer = trainer(f"""{packages}
bias, mask = torch.randn(4, 16, 16, requires_grad=True), torch.rand(2, 1, 16, 16) > 0.5
pairs = [attend(), attend(settings=dict(causal=True, scale=0.2)), attend(mask=visible), attend(bias=bias),
         attend(mask=visible, settings=dict(causal=True)), attend(mask=mask, bias=bias), attend(heads(1), mask=visible),
         attend(heads(2), bias=bias, settings=dict(causal=True)), attend(heads(4, keys=24), causal=True)]
print(json.dumps([[rows(work) for work in pairs], linear.weight._cdata]))
""")
    for pair in found:
        assert_described(pair, "x_transformers_attention", layer)
    assert [ahead["causal"] for ahead, _ in found] == [0, 2, 0, 0, 0, 0, 0, 2, 2]
    assert found[1][0]["scale"] == 0.2


def test_x_transformers_with_other_settings_is_not_judged(packages, trainer) -> None:
    off = [
        "l2_distance", "softclamp_logits", "selective", "add_zero_kv", "head_learned_sink", "cog_signed", "cope",
        "inverted_attention", "pre_softmax_talking_heads", "post_softmax_talking_heads", "pre_scale_post_talking_heads",
    ]  # fmt: skip
    seen, flash, changed, names = trainer(f"""{packages}
def reasons(work): return [row.get("reason", -1) for row in rows(work)]
seen = {{name: reasons(attend(settings={{name: True}})) for name in {off}}}
seen |= dict(
    sharp=reasons(attend(settings=dict(attn_fn=lambda scores: (2 * scores).softmax(-1)))),
    residual=reasons(attend(prev_attn=torch.zeros(1))), delta=reasons(attend(attn_delta=torch.zeros(1))),
    no_key=reasons(attend(mask=left, settings=dict(causal=True))))
events(); attend(settings=dict(flash=True))()
flash = [row["op"] for row in events("leave")]
empty = visible[:, None, None] & (torch.arange(16) != 3)[:, None]
seen["zeroed"] = reasons(attend(mask=empty))
from foreshock_torch import eager
eager.ATTEND_FORMS.clear(); events(); attend()()
more = events()
print(json.dumps([seen, flash, [row["reason"] for row in more if row["event"] == "skip"],
                  [row["name"] for row in more if row["event"] == "unseen"]]))
""")
    assert seen.pop("zeroed") == [-1, -1]  # the row that sees no key has the output 0
    assert seen == dict.fromkeys([*off, "sharp", "residual", "delta", "no_key"], [MASK])
    # The hook of torch's operation sees it.
    assert flash == ["_scaled_dot_product_flash_attention_for_cpu"]
    assert changed == [UNKNOWN]
    assert names == ["x_transformers Attend.forward: not understood"]


def test_a_loss_on_the_scores_leaves_the_gradients_unjudged(packages, trainer) -> None:
    """Gradients of query and key are then those of the scores too. The values that the training gets are the same."""
    found, bits = trainer(f"""{packages}
found = [rows(attend(), lambda out, rest: out.square().sum() + rest.pre_softmax_attn.logsumexp(-1).sum()),
         rows(attend(), lambda out, rest: out.square().sum() + rest.pre_softmax_attn.detach().sum())]
k, v = heads(4); q = query().detach()
ours = Attend()(q.requires_grad_(), k, v)[1]; plain = Attend.forward.__wrapped__(Attend(), q, k, v)[1]
bits = all(torch.equal(getattr(ours, name), getattr(plain, name)) for name in ("pre_softmax_attn", "post_softmax_attn"))
print(json.dumps([[[row.get("reason", -1) for row in pair] for pair in found], bits]))
""")
    assert found == [[-1, UNKNOWN], [-1, -1]]
    assert bits


MEGATRON = """
order = (1, 2, 0, 3)
class Kind:
    def __init__(self, name): self.name = name
def dot(kv=None, mask=None, kind="causal", offset=None, func=written.hide, **softmax):
    q = linear(torch.randn(16, 2, 32)).view(16, 2, 4, 8)
    k, v = kv or [torch.randn(16, 2, 4, 8, requires_grad=True) for _ in range(2)]
    module = Dot(Softmax(Kind(kind), func, **softmax), 0.25); module.softmax_offset = offset
    return lambda: (module(q, k, v, mask), None, k, v)
upper = torch.ones(16, 16, dtype=torch.bool).triu(1)[None, None]
padded = upper.repeat(2, 1, 1, 1); padded[1, :, :, 11:] = True
"""


def test_calls_of_megatron_core_are_described_both_ways(packages, trainer) -> None:
    found, layer = trainer(f"""{packages}{MEGATRON}
few = [torch.randn(16, 2, 2, 8, requires_grad=True) for _ in range(2)]
pairs = [dot(), dot(kind="no_mask"), dot(mask=padded), dot(few, mask=upper, kind="padding"), dot(scale=0.5)]
print(json.dumps([[rows(work) for work in pairs], linear.weight._cdata]))
""")
    for pair in found:
        assert_described(pair, "megatron_attention", layer)
        assert pair[0]["query"]["shape"] == [2, 4, 16, 8]
    assert [(ahead["causal"], bool(ahead["mask"]), ahead["scale"]) for ahead, _ in found] == [
        (TOP_LEFT, False, 0.25), (NO_MASK, False, 0.25), (NO_MASK, True, 0.25), (NO_MASK, True, 0.25),
        (TOP_LEFT, False, 0.125),
    ]  # fmt: skip


def test_megatron_core_with_other_settings_is_not_judged(packages, trainer) -> None:
    seen = trainer(f"""{packages}{MEGATRON}
def reasons(work): return [row.get("reason", -1) for row in rows(work)]
def other(scores, mask): return scores.masked_fill(mask, -1.0)
fused, Softmax.is_kernel_available = Softmax.is_kernel_available, lambda *more: True
seen = dict(fused=reasons(dot()), fused_mask=reasons(dot(mask=padded, kind="padding")))
Softmax.is_kernel_available = fused
seen |= dict(
    sink=reasons(dot(offset=torch.zeros(4))), window=reasons(dot(window_size=(4, 0))),
    no_key=reasons(dot(mask=padded | (torch.arange(16) < 3))), other=reasons(dot(mask=padded, func=other)))
Softmax.forward_torch_softmax = lambda self, scores, mask, offset: (scores * 1.01).softmax(-1)
seen |= dict(sharper=reasons(dot()))
print(json.dumps(seen))
""")
    assert seen == {
        "fused": [-1, -1], "fused_mask": [MASK], "sink": [MASK], "window": [MASK], "no_key": [MASK],
        "other": [UNKNOWN], "sharper": [UNKNOWN],
    }  # fmt: skip


def test_a_digest_is_that_of_the_statements() -> None:
    source = """def f(a: int = 1, b={"c": 2}) -> int:
    '''What it does.'''
    if a:  # why
        return a + b
    x = f"{a} b"
"""
    same = """
    def g(a, b):
      if a:
        return a+b
      x = f"{a} b"
    """
    assert sources.digest_of(source) == sources.digest_of(same)
    changes = [
        ("a + b", "a - b"), ("if a", "if not a"), ("    x =", "        x ="), ("return a", "return aa"),
        ("{a} b", "{a}b"), ("return a", "returna"),
    ]  # fmt: skip
    others = [source.replace(before, after) for before, after in changes]
    assert len({sources.digest_of(text) for text in (source, *others)}) == 1 + len(others)
    assert sources.digest(print) == ""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("most", [1, 100, 1 << 22])
def test_a_log_sum_exp_of_rows_is_that_of_the_scores(layout: str, most: int, monkeypatch) -> None:
    monkeypatch.setattr(row_sums, "_MOST_SCORES", most)
    generator = torch.Generator().manual_seed(0)

    def tensor(heads: int, positions: int, dtype: torch.dtype) -> torch.Tensor:
        axes = {"b": 3, "h": heads, "n": positions, "d": 8}
        return torch.randn([axes[axis] for axis in layout], generator=generator).to(dtype)

    hidden = torch.rand(3, 1, 6, 10, generator=generator) > 0.7
    hidden[1, 0, 2] = True
    for dtype in (torch.bfloat16, torch.float32):
        for mask in (None, ~hidden, torch.zeros(6, 10).masked_fill(hidden[0, 0], -math.inf)):
            for causal in (NO_MASK, TOP_LEFT, BOTTOM_RIGHT):
                q, k = tensor(4, 6, dtype), tensor(2, 10, dtype)
                call = Call(q, k, k, q, None, 0.5, causal, LAYOUTS[layout], mask)
                found = row_sums.log_sum_exp(call)
                q, k = (t.permute(*(layout.index(axis) for axis in "bhnd")).double() for t in (q, k))
                scores = 0.5 * q @ k.repeat_interleave(2, 1).transpose(-1, -2)
                if mask is not None:
                    added = mask if mask.dtype != torch.bool else torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
                    scores = scores + added
                if causal:
                    diagonal = 1 + (4 if causal == BOTTOM_RIGHT else 0)
                    scores = scores.masked_fill(torch.ones(6, 10, dtype=torch.bool).triu(diagonal), -math.inf)
                # Rounded to fp32 at the end; a sum of 8 products in fp32 has an error below 2^-21.
                torch.testing.assert_close(found.double(), scores.logsumexp(-1), rtol=2**-23, atol=2**-20)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("knows_weights", [True, False])
def test_a_sink_is_one_more_key(dtype: torch.dtype, knows_weights: bool) -> None:
    """Its gradients are those of a key and a value of zeros, by autograd."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, n, 12, 8).to(dtype).double() for n in (4, 2, 2))
    mask, scores = torch.randn(1, 1, 12, 12).to(dtype).double(), torch.randn(4).to(dtype).double()
    key = torch.nn.functional.pad(k, (0, 0, 0, 1)).requires_grad_()
    value = torch.nn.functional.pad(v, (0, 0, 0, 1)).requires_grad_()
    whole = torch.cat((mask.expand(1, 4, 12, 12), scores.view(1, 4, 1, 1).expand(1, 4, 12, 1)), -1)
    weights = (q @ key.repeat_interleave(2, 1).transpose(2, 3) * 0.3 + whole).softmax(-1)
    out = weights @ value.repeat_interleave(2, 1)
    grad_out = torch.randn_like(out)
    of_key, of_value = torch.autograd.grad(out, (key, value), grad_out)
    call = Call(
        *(t.to(dtype) for t in (q, k, v, out)), None, 0.3, NO_MASK, LAYOUTS["bhnd"], mask.to(dtype),
        sink=Sink(scores.to(dtype), weights.detach()[..., -1:].to(dtype) if knows_weights else None),
    )  # fmt: skip
    assert sinks.with_gradients(sinks.with_key(call._replace(sink=None))) == call._replace(sink=None)
    call = sinks.with_key(call)
    lse = row_sums.log_sum_exp(call)
    own = (q @ key.repeat_interleave(2, 1).transpose(2, 3) * 0.3 + whole).logsumexp(-1)
    assert (lse - own).abs().max() <= 4 * FLOAT32
    given = (grad_out, q, of_key[:, :, :-1], of_value[:, :, :-1])
    found = sinks.with_gradients(call._replace(lse=lse, gradients=tuple(t.to(dtype) for t in given))).gradients
    if dtype == torch.bfloat16 and not knows_weights:
        assert found[2:] == (None, None)
        return
    for gradient, truth in zip(found[2:], (of_key, of_value), strict=True):
        assert gradient.dtype == dtype
        # The inputs are rounded to the format; a log-sum-exp is rounded to fp32.
        limit = 8 * torch.finfo(dtype).eps if dtype != torch.float64 else FLOAT32
        assert (gradient - truth).norm() <= limit * truth.norm()


def test_a_mask_with_sinks_has_a_limit() -> None:
    query = torch.empty(1, 1, 1, 8).expand(4, 8, 2048, 8)
    call = Call(query, query, query, None, None, 1.0, NO_MASK, LAYOUTS["bhnd"], torch.empty(1).expand(4, 1, 2048, 2048))
    assert sinks.is_too_large(call)
    assert not sinks.is_too_large(call._replace(mask=None))
