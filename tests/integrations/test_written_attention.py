"""Attention that a module writes out in torch operations is recognised by its operations and described both ways. The
log-sum-exp of such a call is computed for the check of dK and dV.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integrations" / "torch" / "python"))
from foreshock_torch import row_sums, sinks  # noqa: E402
from foreshock_torch.calls import BOTTOM_RIGHT, NO_MASK, TOP_LEFT, Call, Sink  # noqa: E402
from foreshock_torch.tap import LAYOUTS  # noqa: E402

pytestmark = pytest.mark.quick

MASK, UNKNOWN = 6, 10  # FORESHOCK_SKIP_... of hook.h
FLOAT32 = 2.0**-22  # sums of a row add up what is rounded to fp32
ROUNDED = 64 * FLOAT32  # computed in fp32: an error of 2^-24 in each of a few dozen operations on a row

SET_UP = """
from foreshock_torch import written
B, H, N, D = 2, 4, 16, 8
causal = torch.ones(N, N).triu(1) > 0
padded = torch.zeros(B, 1, 1, N, dtype=torch.bool); padded[1, ..., 11:] = True
bias, gain = torch.randn(H, N, N, requires_grad=True), torch.rand(H, 1, 1, requires_grad=True)
lowest = torch.finfo(torch.float32).min
sink = torch.randn(1, H, 1, 1, requires_grad=True)
def with_sink(scores): return torch.cat([scores, sink.expand(B, -1, scores.shape[-2], -1)], dim=-1)
def shifted(scores): return scores - scores.max(dim=-1, keepdim=True).values  # its gradient reaches the scores
def attention(body):
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__(); self.q = torch.nn.Linear(32, 32)
        def forward(self, x, k, v): return body(self.q(x).view(B, N, H, D).transpose(1, 2), k, v)
    written.follow([Attention])
    return Attention()
def fingerprint(t): return (t.double().flatten() * torch.arange(1, t.numel() + 1, dtype=torch.double)).sum().item()
def heads(): return [torch.randn(B, H, N, D, requires_grad=True) for _ in range(2)]
def rows(body, loss=lambda out: out.square().sum()):
    module = attention(body); k, v = heads(); events()
    loss(module(torch.randn(B, N, 32), k, v)).backward()
    found = [row for row in events() if row["event"] in ("leave", "skip")]
    for row in found: row["is_of_layer"] = row.get("layer") == module.q.weight._cdata
    for row in found[1:]: row["truth"] = [fingerprint(k.grad), fingerprint(v.grad)]
    return found
"""
# Bodies of attention, and what is seen of each: dropout, soft cap, whether there is a mask.
FORMS = {
    "((q @ k.transpose(-2, -1)) * 0.3).masked_fill(causal, float('-inf')).softmax(-1) @ v": (0, 0, True),
    "F.dropout(torch.softmax(torch.einsum('bhid,bhjd->bhij', q, k) / 3, dim=3), 0.2) @ v": (0.2, 0, False),
    "torch.einsum('bhij,bhjd->bihd', (q @ k.mT + bias).softmax(-1), v).transpose(1, 2)": (0, 0, True),
    "F.softmax(20 * torch.tanh((q @ k.mT) / 20) + lowest * padded, dim=-1, dtype=torch.float32) @ v": (0, 20, True),
    "torch.where(padded, lowest, (q * 0.3) @ k.mT).softmax(-1).type_as(q) @ v": (0, 0, True),
    "torch.matmul(((q @ k.mT) * gain + bias).softmax(-1), v)": (0, 0, True),
    "((q @ k.mT).add_(bias.detach()).masked_fill_(causal, -1e9)).softmax(-1) @ v": (0, 0, True),
    "(lambda s: (s - s.detach().amax(-1, keepdim=True)).softmax(-1))(q @ k.mT) @ v": (0, 0, False),
    "torch.max((q @ k.mT + 0.0).masked_fill(causal, float('-inf')), torch.tensor(lowest)).softmax(-1) @ v": (
        0,
        0,
        True,
    ),
    # Three dimensions, batch and head in one, and scores with four.
    "torch.bmm((torch.baddbmm(bias.repeat(B, 1, 1), *flat(q, k.mT), beta=0.5, alpha=0.3).view(B, H, N, N)"
    ".masked_fill(padded, lowest)).softmax(-1).view(B * H, N, N), v.flatten(0, 1)).view(B, H, N, D)": (0, 0, True),
    # All heads share keys and values, which are the rows of one matrix.
    "(q.reshape(B, H * N, D) @ k[:, 0].mT).view(B, H, N, N).masked_fill(causal, -1e9).softmax(-1)"
    ".view(B, H * N, N) @ v[:, 0]": (0, 0, True),
    "((q @ k[:, 2:3].mT) * 0.3).softmax(-1) @ v[:, 2:3]": (0, 0, False),
    # Rows that see no key have no part in the loss: it is of the others only.
    "((q @ k.mT).masked_fill(padded | padded.mT, lowest).softmax(-1) @ v) * ~padded.mT": (0, 0, True),
    # Sinks: as GPT-OSS of transformers, as OpenAI's own, and after hidden scores.
    "F.dropout(shifted(with_sink((q @ k.mT) * 0.3 + bias)).softmax(-1)[..., :-1], 0.2) @ v": (0.2, 0, True),
    "torch.einsum('bhij,bjhd->bhid', torch.softmax(torch.cat((torch.einsum('bihd,bjhd->bhij', q.transpose(1, 2), "
    "k.transpose(1, 2)), sink.expand(B, H, N, 1)), -1), -1)[..., :N], v.transpose(1, 2))": (0, 0, True),
    "with_sink((q @ k.mT).masked_fill(padded | padded.mT, lowest)).softmax(-1).narrow(-1, 0, N) @ v": (0, 0, True),
    "shifted(q @ k[:, :2].repeat_interleave(2, 1).mT).softmax(-1) @ v": (0, 0, False),
    "F.multi_head_attention_forward(*[t.flatten(1, 2).mT.reshape(N, B, 32) for t in (q, k, v)], 32, H, "
    "torch.eye(32).repeat(3, 1), None, None, None, False, 0.0, torch.eye(32), None, attn_mask=bias.detach()"
    ".repeat(B, 1, 1))[0]": (0, 0, True),
}


def test_attention_in_all_its_forms_is_described_both_ways(trainer) -> None:
    bodies = ", ".join(f"lambda q, k, v: {form}" for form in FORMS)
    found = trainer(f"""{SET_UP}
def flat(*tensors): return [t.reshape(B * H, *t.shape[2:]) for t in tensors]
print(json.dumps([rows(body) for body in [{bodies}]]))
""")
    for pair, (form, (dropout, cap, has_mask)) in zip(found, FORMS.items(), strict=True):
        assert len(pair) == 2, form
        ahead, back = pair
        assert [row.get("op") for row in pair] == [f"foreshock::eager_attention{end}" for end in ("", "_backward")], (
            form
        )
        is_frozen = "torch.eye" in form  # the projection in front of the query, so the layer is unknown
        assert [row.get("is_of_layer") for row in pair] == [not is_frozen] * 2, form
        assert (ahead["dropout"], ahead["soft_cap"]) == (dropout, cap), form
        assert (bool(ahead["mask"]), bool(ahead["kept"])) == (has_mask, dropout > 0), form
        assert 0 <= ahead["errors"]["out"] <= ROUNDED, form
        assert 0 <= back["errors"]["grad_query"] <= ROUNDED, form
        if "~padded.mT" not in form:  # where all scores of a row are -1e30, their number has no effect on the sum
            assert 0 <= back["errors"]["lse"] <= 16 * FLOAT32, form  # rounded once; the scores are a few units large
        for tensor, truth in zip(("grad_key", "grad_value"), back["truth"], strict=True):
            if back[tensor]["shape"] == [2, 4, 16, 8] and not is_frozen:
                # The gradient of the whole training, which has one attention: at most the order of sums differs.
                assert abs(back[tensor]["fingerprint"] - truth) <= 1e-5 * (1 + abs(truth)), (form, tensor)


# Bodies that are not attention, or not as any description has it: no call is reported.
NO_FORMS = [
    "(q @ k.mT).softmax(-2) @ v", "(q @ k.mT).clamp(max=1).softmax(-1) @ v", "(q @ k.mT).exp() @ v",
    "(q @ k.mT).softmax(-1).square() @ v", "(2 * (q @ k.mT).softmax(-1)) @ v", "((q @ k.mT) * bias).softmax(-1) @ v",
    "(q @ k.mT).masked_fill(causal, -5.0).softmax(-1) @ v", "(q @ k.mT).sort(-1)[0].softmax(-1) @ v",
    "with_sink(q @ k.mT).softmax(-1)[..., 1:] @ v", "(with_sink(q @ k.mT) * 2).softmax(-1)[..., :-1] @ v",
    "F.dropout(with_sink(q @ k.mT).softmax(-1), 0.2)[..., :-1] @ v",
    "(with_sink(q @ k.mT) + 0.5).softmax(-1)[..., :-1] @ v",
    "torch.cat((q @ k.mT, (q @ k.mT)[..., :2]), -1).softmax(-1)[..., :-2] @ v",
    "(q @ k.mT).softmax(-1).masked_fill(causal, 0.0) @ v", "(q @ k.mT).mT.softmax(-1) @ v",
    "(lambda s: (s[..., 3].zero_(), s)[1])(q.detach() @ k.mT.detach()).softmax(-1) @ v",
    "(lambda q, s: (q.zero_(), s)[1])(q.detach().clone(), (q @ k.mT)).softmax(-1)[..., :8] @ v[..., :8, :]",
]  # fmt: skip


def test_other_operations_are_not_reported(trainer) -> None:
    bodies = ", ".join(f"lambda q, k, v: {form}" for form in NO_FORMS)
    found, twice, blind = trainer(f"""{SET_UP}
found = [rows(body) for body in [{bodies}]]
weights = []
def keeps(q, k, v): weights[:] = [(q @ k.mT).softmax(-1)]; return weights[0] @ v
def sees_none(q, k, v): return (q @ k.mT).masked_fill(padded | padded.mT, lowest).softmax(-1) @ v
def shifts(q, k, v): weights[:] = [q @ k.mT]; return shifted(weights[0]).softmax(-1) @ v
def adds(q, k, v): s = q @ k.mT; return shifted(s).softmax(-1) @ v + s.square().mean()
def uses_query(q, k, v): return (q @ k.mT).softmax(-1) @ v + q
twice = [rows(keeps, lambda out: out.sum() + weights[0].square().sum()), rows(keeps), rows(shifts), rows(adds),
         rows(uses_query)]
print(json.dumps([found, twice, rows(sees_none)]))
""")
    for rows, form in zip(found, NO_FORMS, strict=True):
        assert rows == [], form
    # If a loss uses the weights too, the gradients of query and key are not those of the output alone.
    reasons = [[row.get("reason", -1) for row in pair] for pair in twice]
    assert reasons == [[-1, UNKNOWN], [-1, -1], [-1, UNKNOWN], [-1, UNKNOWN], [-1, -1]]
    assert twice[-1][1]["errors"]["grad_query"] <= ROUNDED  # of this attention, without what the query is added to
    # The gradients of a row without a visible key are those of no mask.
    assert [row.get("reason", -1) for row in blind] == [-1, UNKNOWN]


MIXED = [
    "(q @ k.mT * 0.3 + lowest * padded).softmax(-1) @ v", "F.dropout((q @ k.mT).float().softmax(-1), 0.2) @ v",
    "torch.einsum('bhij,bhjd->bhid', torch.einsum('bhid,bhjd->bhij', q.float(), k).softmax(-1).to(v.dtype), v)",
    "with_sink((q @ k.mT) * 0.3 + bias).softmax(-1)[..., :-1] @ v.bfloat16()",
]  # fmt: skip


def test_attention_under_autocast_is_described_as_it_is_computed(trainer) -> None:
    bodies = ", ".join(f"lambda q, k, v: {form}" for form in MIXED)
    found, others = trainer(f"""{SET_UP}
with torch.autocast("cpu", torch.bfloat16):
    found = [rows(body) for body in [{bodies}]]
    others = [rows(lambda q, k, v: ((q @ k.mT) * gain + bias).softmax(-1) @ v),
              rows(lambda q, k, v: (q @ k.mT).softmax(-1) @ v.half())]
print(json.dumps([found, others]))
""")
    for pair, form in zip(found, MIXED, strict=True):
        assert [row.get("reason", -1) for row in pair] == [-1, -1], form
        ahead, back = pair
        assert [row["is_of_layer"] for row in pair] == [True, True], form
        assert ahead["query"]["dtype"] == ahead["key"]["dtype"] == back["grad_key"]["dtype"], form
        # Scores of a few units, weights and output are each rounded to bf16 (2^-9).
        assert 0 < ahead["errors"]["out"] <= 16 * 2.0**-9, form
        assert 0 < back["errors"]["grad_query"] <= 32 * 2.0**-9, form
        if back["grad_key"]["shape"] == [2, 4, 16, 8]:
            for tensor, truth in zip(("grad_key", "grad_value"), back["truth"], strict=True):
                assert abs(back[tensor]["fingerprint"] - truth) <= 1e-5 * (1 + abs(truth)), (form, tensor)
    assert [[row.get("reason") for row in rows] for rows in others] == [[UNKNOWN]] * 2


def test_the_bits_of_the_training_stay(trainer) -> None:
    bodies = ", ".join(f"lambda q, k, v: {form}" for form in (*FORMS, *NO_FORMS))
    assert trainer(f"""{SET_UP}
def flat(*tensors): return [t.reshape(B * H, *t.shape[2:]) for t in tensors]
def bits(body, is_followed):
    bias.grad = gain.grad = sink.grad = None
    torch.manual_seed(3); module = attention(body); k, v = heads()
    forward = type(module).forward if is_followed else type(module).forward.__wrapped__
    out = forward(module, torch.randn(B, N, 32), k, v); out.square().sum().backward()
    found = (out, k.grad, v.grad, module.q.weight.grad, bias.grad, gain.grad, sink.grad)
    return [torch.nan_to_num(t.detach()) for t in found if t is not None]
print(json.dumps([all(map(torch.equal, bits(body, True), bits(body, False))) for body in [{bodies}]]))
""") == [True] * (len(FORMS) + len(NO_FORMS))


def test_attention_that_is_not_described_is_named_with_its_operation(trainer) -> None:
    """Talking heads (CaiT), chunks (Longformer), blocks (LongT5); not a product that is no attention."""
    names = trainer(f"""{SET_UP}
mix = torch.nn.Linear(H, H)
def talking(q, k, v): return mix((q @ k.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(-1) @ v
def chunked(q, k, v):
    scores = torch.zeros(B, H, N, N + 2); scores[:, :, :, 1:] = F.pad(q @ k.mT, (0, 1))
    return scores.softmax(-1)[..., 1:-1] @ v
def blocks(q, k, v):
    q, k, v = (t.reshape(B, 2, H, N // 2, D) for t in (q, k, v))
    return torch.einsum("...qk,...kd->...qd", torch.einsum("...qd,...kd->...qk", q, k).softmax(-1), v)
def other(q, k, v): return F.scaled_dot_product_attention(q * (q @ k.mT).cos().mean(), k, v)
def names(body):
    module = attention(body); inputs = (torch.randn(B, N, 32), *heads()); events()
    module(*inputs); module(*inputs)
    return [row["name"] for row in events("unseen")]
print(json.dumps([names(body) for body in (talking, chunked, blocks, other)]))
""")
    assert names == [[f"Attention: {name} before softmax"] for name in ("linear", "pad", "einsum")] + [[]]


def test_hooks_of_gradients_keep_nothing_and_change_no_bit(trainer) -> None:
    """Also where a graph is dropped, walked twice, or differentiated for one tensor only."""
    found = trainer(f"""{SET_UP}
import gc, hashlib, weakref
def outcome(is_followed):
    torch.manual_seed(3); total, alive = hashlib.sha256(), []
    def follow(tensor): alive.append(weakref.ref(tensor)); return tensor
    def body(q, k, v): follow(q); return shifted(with_sink(q @ k.mT)).softmax(-1)[..., :-1] @ v + q
    module = attention(body); k, v = heads(); x = torch.randn(B, N, 32)
    forward = type(module).forward if is_followed else type(module).forward.__wrapped__
    for n in range(5):
        out = follow(forward(module, x, k, v)); loss = out.square().sum()
        if n == 0: del loss, out; continue
        if n == 1: torch.autograd.grad(loss, module.q.weight)
        elif n == 2: loss.backward(retain_graph=True); loss.backward()
        else: loss.backward()
        total.update(out.detach().numpy().tobytes()); del loss, out
    for tensor in (*module.parameters(), k, v): total.update(tensor.grad.numpy().tobytes())
    return total.hexdigest(), sum(tensor() is not None for tensor in alive)
gc.disable()
print(json.dumps([outcome(True), outcome(False)]))
""")
    assert found == [[found[1][0], 0]] * 2


def test_a_forward_is_followed_only_where_it_is_wanted(trainer) -> None:
    """Not in steps that are not sampled, under a mode of the training, without gradients, or where it has no attention;
    and not twice, if a wrapped function (seams.py) or a hooked operation computes it, or the training taps it."""
    seen = trainer(f"""{SET_UP}
from torch.overrides import TorchFunctionMode
class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None): return function(*args, **(kwargs or {{}}))
def plain(q, k, v): return (q @ k.mT).softmax(-1) @ v
def count(body, around=None):
    module = attention(body); inputs = (torch.randn(B, N, 32), *heads()); events()
    with around or torch.enable_grad(): module(*inputs)
    return len(events("leave"))
def within(q, k, v):
    with written.watch.outside(): return plain(q, k, v)
seen = [count(plain), count(plain, Mode()), count(plain, torch.no_grad()), count(within)]
seen.append(count(lambda q, k, v: F.scaled_dot_product_attention(q, k, v)))
linear = attention(lambda q, k, v: q + k + v); inputs = (torch.randn(B, N, 32), *heads())
depths = []
def body(q, k, v): depths.append(torch._C._len_torch_function_stack()); return q + k + v
other = attention(body)
for _ in range(10): other(*inputs)
_fake.fake_sample(0); seen.append(count(plain)); _fake.fake_sample(1)
from foreshock_torch import tap
k, v = heads(); tap.tap(k, k, v, v); seen.append(count(plain))
print(json.dumps([seen, depths]))
""")
    assert seen == [[1, 0, 0, 0, 1, 0, 0], [1] * 8 + [0] * 2]


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
                found = row_sums.completed(call).lse
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


def test_a_wrong_output_is_no_error_of_the_backward_pass(trainer) -> None:
    """The backward pass of attention that is written out does not read the output."""
    found = trainer(f"""{SET_UP}
library, products = torch.library.Library("aten", "IMPL"), []
def bmm(a, b):
    out = torch.stack([x.mm(y) for x, y in zip(a, b)])
    if a.dtype == torch.float32: products.append(1)  # those in fp64 are of foreshock
    return out * 1.05 if len(products) == 2 and a.dtype == torch.float32 else out
library.impl("bmm", bmm, "CPU")
print(json.dumps(rows(lambda q, k, v: ((q @ k.mT) * 0.3).softmax(-1) @ v)))
""")
    ahead, back = found
    assert 0.049 <= ahead["errors"]["out"] <= 0.051
    assert 0 <= back["errors"]["out"] <= ROUNDED
    assert 0 <= back["errors"]["grad_query"] <= ROUNDED


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("most", [1, 1 << 22])
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_wrong_rows_of_an_output_are_replaced(layout: str, most: int, dropout: float, monkeypatch) -> None:
    """The backward pass of attention that is written out does not read them. Right rows stay as they are."""
    monkeypatch.setattr(row_sums, "_MOST_SCORES", most)
    torch.manual_seed(4)
    to_layout = ["bhnd".index(axis) for axis in layout]
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (torch.randn(2, heads, 6, 8, dtype=dtype) for heads in (4, 2, 2))
        hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
        scores = (q @ k.repeat_interleave(2, 1).mT * 0.5).masked_fill(hidden, -math.inf)
        kept = torch.rand(scores.shape) >= dropout
        weights = scores.float().softmax(-1) * kept / (1 - dropout)
        out = weights.to(dtype) @ v.repeat_interleave(2, 1)
        wrong = out.clone()
        wrong[:, 1, 2] *= 1.25
        wrong[0, 0, 5] = math.nan
        given = (tensor.permute(to_layout) for tensor in (q, k, v, wrong))
        call = Call(*given, None, 0.5, NO_MASK, LAYOUTS[layout], ~hidden, dropout, kept if dropout else None)
        assert row_sums.completed(call).out is call.out
        found = row_sums.completed(call._replace(is_written_out=True)).out
        assert found.shape == call.out.shape
        found = found.permute([layout.index(axis) for axis in "bhnd"])
        changed = (found != wrong).any(-1)
        assert changed.nonzero().tolist() == [[0, 0, 5], [0, 1, 2], [1, 1, 2]]
        # Scores, weights and output are rounded, with scores of at most 8.
        limit = 16 * torch.finfo(dtype).eps
        assert ((found - out).float().norm(dim=-1) <= limit * out.float().norm(dim=-1)).all()
    assert row_sums.completed(call._replace(is_written_out=True, dropout=0.5, kept=None)).out is call.out


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_a_sink_is_one_more_key(dtype: torch.dtype, dropout: float) -> None:
    """Its gradients are those of a key and a value of zeros, by autograd."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, n, 12, 8).to(dtype).double() for n in (4, 2, 2))
    mask, scores = torch.randn(1, 1, 12, 12).to(dtype).double(), torch.randn(4).to(dtype).double()
    key = torch.nn.functional.pad(k, (0, 0, 0, 1)).requires_grad_()
    value = torch.nn.functional.pad(v, (0, 0, 0, 1)).requires_grad_()
    whole = torch.cat((mask.expand(1, 4, 12, 12), scores.view(1, 4, 1, 1).expand(1, 4, 12, 1)), -1)
    weights = (q @ key.repeat_interleave(2, 1).transpose(2, 3) * 0.3 + whole).softmax(-1)
    kept = (torch.rand_like(weights) >= dropout).double()
    kept[..., -1] = 1
    out = (weights * kept / (1 - dropout)) @ value.repeat_interleave(2, 1)
    grad_out = torch.randn_like(out)
    of_key, of_value = torch.autograd.grad(out, (key, value), grad_out)
    call = Call(
        *(t.to(dtype) for t in (q, k, v, out)), None, 0.3, NO_MASK, LAYOUTS["bhnd"], mask.to(dtype), dropout,
        kept[..., :-1], sink=Sink(scores.view(1, 4, 1, 1).to(dtype), weights.detach()[..., -1:].to(dtype)),
    )  # fmt: skip
    assert sinks.with_gradients(sinks.with_key(call._replace(sink=None))) == call._replace(sink=None)
    call = sinks.with_key(call)
    assert torch.equal(call.kept, kept)
    lse = row_sums.completed(call).lse
    own = (q @ key.repeat_interleave(2, 1).transpose(2, 3) * 0.3 + whole).logsumexp(-1)
    assert (lse - own).abs().max() <= 4 * FLOAT32
    given = (grad_out, q, of_key[:, :, :-1], of_value[:, :, :-1])
    found = sinks.with_gradients(call._replace(lse=lse, gradients=tuple(t.to(dtype) for t in given))).gradients
    for gradient, truth in zip(found[2:], (of_key, of_value), strict=True):
        assert gradient.dtype == dtype
        # The inputs are rounded to the format; a log-sum-exp is rounded to fp32.
        limit = 8 * torch.finfo(dtype).eps if dtype != torch.float64 else FLOAT32
        assert (gradient - truth).norm() <= limit * truth.norm()


def test_a_mask_with_sinks_has_a_limit() -> None:
    query = torch.empty(1, 1, 1, 8).expand(4, 8, 2048, 8)
    sink = Sink(query[..., :1].expand(4, 8, 2048, 1), None)
    mask = torch.empty(4, 1, 1, 1).expand(4, 1, 2048, 2048)
    call = Call(query, query, query, None, None, 1.0, NO_MASK, LAYOUTS["bhnd"], mask, sink=sink)
    assert sinks.is_too_large(call)
    assert not sinks.is_too_large(call._replace(mask=mask[:1].expand(4, 8, 2048, 2048)))
    assert not sinks.is_too_large(call._replace(mask=None))
