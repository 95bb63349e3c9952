"""What each attention operation of torch's CUDA library means: recomputed from its description alone, it is what the
operation gave (tests/support/device_attention.py, which has a source for each meaning), or a reason is told."""

from __future__ import annotations

import math

import pytest

pytestmark = pytest.mark.quick

MASK, LAYOUT, FP8 = 6, 7, 5  # FORESHOCK_SKIP_... of hook.h
NONE, TOP_LEFT, BOTTOM_RIGHT = 0, 1, 2  # FORESHOCK_CAUSAL_...

# The stand-ins compute in fp64 and round once to fp32: 2^-24 of each value, twice that for what is added up here.
ROUNDED = 2**-23
LARGEST_SUM = 16  # of the logarithms of row sums, which are rounded alike

DEVICE = """
import device_attention as device
from device_attention import put, get
aten = torch.ops.aten
def there(*shapes): return [put(torch.randn(shape)).requires_grad_() for shape in shapes]
def told(work):
    events(); work(); rows = events()
    return [row for row in rows if row["event"] in ("leave", "skip")]
def offsets(*edges): return torch.tensor(edges, dtype=torch.int32)
"""


def assert_right(row: dict, has_sums: bool = True) -> None:
    assert row["event"] == "leave", row
    errors = row["errors"]
    assert 0 <= errors["out"] <= ROUNDED, row
    if has_sums:
        assert 0 <= errors["lse"] <= LARGEST_SUM * ROUNDED, row
    if row["pass"] == 1:
        assert 0 <= errors["grad_query"] <= ROUNDED, row


@pytest.mark.parametrize(("backend", "name"), [(1, "flash"), (2, "efficient"), (3, "cudnn")])
def test_scaled_dot_product_attention(trainer, host_cuda, backend: int, name: str) -> None:
    """Through torch's own composite and autograd: grouped heads, a head dimension that is padded, masks, a scale."""
    calls = trainer(
        f"""{DEVICE}
host_cuda.host_cuda_set_backend({backend})
def both(q, k, v, **more):
    return told(lambda: sdpa(q, k, v, **more).square().sum().backward())
plain = there(*[(2, 4, 19, 16)] * 3)
rows = [both(*plain), both(*plain, is_causal=True), both(*plain, is_causal=True, scale=0.5),
        both(*there(*[(2, 4, 19, 12)] * 3), is_causal=True)]
if {backend} != 2: rows.append(both(*there((2, 4, 19, 16), *[(2, 2, 19, 16)] * 2), enable_gqa=True, is_causal=True))
if {backend} != 1:
    rows += [both(*plain, attn_mask=put(mask)) for mask in (
        torch.randn(19, 19), torch.randn(2, 1, 19, 19), torch.randn(2, 4, 19, 19), torch.randn(19, 19) > 0)]
print(json.dumps(rows))
""",
        HOST_CUDA=host_cuda,
    )
    for ahead, back in calls:  # one of each: what an operation calls itself is part of it
        assert ahead["op"] == f"_scaled_dot_product_{name}_attention"
        assert back["op"] == f"_scaled_dot_product_{name}_attention_backward"
        assert_right(ahead)
        assert_right(back)
    assert [row["scale"] for row, _ in calls[:4]] == [0.25, 0.25, 0.5, 1 / math.sqrt(12)]
    assert calls[3][0]["query"]["shape"][3] == (16 if name == "flash" else 12)
    assert all((row["mask"] is not None) == (n >= len(calls) - 4 and backend != 1) for n, (row, _) in enumerate(calls))


def test_alignment_where_queries_and_keys_differ(trainer, host_cuda) -> None:
    """Causal means the top left to some, the bottom right to others; where no promise is known, nothing is claimed."""
    rows, blind, unknown = trainer(
        f"""{DEVICE}
q, k, v = there((2, 4, 9, 8), (2, 4, 13, 8), (2, 4, 13, 8))
p, l, w = (t.transpose(1, 2) for t in (q, k, v))
def three(q, k, v, p, l, w):
    with torch.no_grad():
        aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
        aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True)
        aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True)
        aten._cudnn_attention_forward(q, k, v, None, None, None, 9, 13, True, 0.0, True)
        aten._flash_attention_forward(p, l, w, None, None, 9, 13, 0.0, True, False)
        for kind in (0, 1, 2): aten._efficient_attention_forward(p, l, w, None, None, None, None, None, 0.0, kind, True)
rows = told(lambda: three(q, k, v, p, l, w))
q, k, v = there((2, 4, 13, 8), (2, 4, 9, 8), (2, 4, 9, 8))
blind = told(lambda: three(q, k, v, *(t.transpose(1, 2) for t in (q, k, v))))
library = torch.library.Library("aten", "IMPL")
library.impl("_scaled_dot_product_fused_attention_overrideable", lambda q, k, v, *more, **words: (
    q.clone(), put(torch.zeros(q.shape[:3])), None, None, 1, 1, device.empty(), device.empty(), None), "CUDA")
other = aten._scaled_dot_product_fused_attention_overrideable
with torch.no_grad():
    unknown = [told(lambda: other(*there(*shapes), None, 0.0, True))[0] for shapes in (
        [(2, 4, 9, 8)] * 3, [(2, 4, 9, 8), (2, 4, 13, 8), (2, 4, 13, 8)])]
print(json.dumps([rows, blind, unknown]))
""",
        HOST_CUDA=host_cuda,
    )
    for row in rows:
        assert_right(row)
    aligned = [BOTTOM_RIGHT, TOP_LEFT, TOP_LEFT, TOP_LEFT, BOTTOM_RIGHT, NONE, TOP_LEFT, BOTTOM_RIGHT]
    assert [row["causal"] for row in rows] == aligned
    # Aligned at the bottom right the first queries see nothing when there are fewer keys.
    assert [row.get("reason") for row in blind] == [MASK if at == BOTTOM_RIGHT else None for at in aligned]
    assert [row["event"] for row in unknown] == ["leave", "skip"]
    assert unknown[1]["reason"] == MASK


def test_operations_below_it(trainer, host_cuda) -> None:
    """Called directly, as by nested tensors, xformers and torch.nn.attention: both passes, dense."""
    rows, inplace = trainer(
        f"""{DEVICE}
q, k, v = there((2, 35, 4, 8), (2, 40, 4, 8), (2, 40, 4, 8)); h = [t.transpose(1, 2) for t in (q, k, v)]
grouped = there((2, 35, 4, 8), (2, 40, 2, 8), (2, 40, 2, 8))
biases = [None, put(torch.randn(35, 40)), put(torch.randn(8, 35, 40)), put(torch.randn(2, 4, 35, 48))[..., :40]]
def efficient(q, k, v, bias, kind, shared=False):
    out, lse, seed, offset, n, m = aten._efficient_attention_forward(
        q, k, v, bias, None, None, None, None, 0.0, kind, True, scale=0.3)
    g = put(torch.randn(out.shape))
    aten._efficient_attention_backward(
        g, q, k, v, bias, out, None, None, n, m, lse, 0.0, seed, offset, kind, False, scale=0.3,
        shared_storage_dqdkdv=shared)
def flash(q, k, v, causal, **window):
    out, lse, seed, offset, _ = aten._flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, causal, False, **window)
    g = put(torch.randn(out.shape))
    aten._flash_attention_backward(
        g, q, k, v, out, lse, None, None, q.shape[1], k.shape[1], 0.0, causal, seed, offset, **window)
def cudnn(q, k, v, bias, causal):
    out, lse, _, _, n, m, seed, offset, _ = aten._cudnn_attention_forward(
        q, k, v, bias, None, None, q.shape[2], k.shape[2], True, 0.0, causal)
    g = put(torch.randn(out.shape))
    aten._cudnn_attention_backward(g, q, k, v, out, lse, seed, offset, bias, None, None, n, m, 0.0, causal)
with torch.no_grad():
    rows = [told(lambda: efficient(q, k, v, bias, kind)) for bias in biases for kind in (0, 1, 2)]
    rows += [told(lambda: efficient(q, q, q, None, 1, shared=True))]
    rows += [told(lambda: flash(q, k, v, causal)) for causal in (False, True)]
    rows += [told(lambda: flash(*grouped, True)), told(lambda: flash(q, k, v, False, window_size_left=40))]
    if hasattr(aten, "_cudnn_attention_forward"):
        rows += [told(lambda: cudnn(*h, bias, causal)) for bias in (biases[0], biases[1], biases[3])
                 for causal in (False, True)]
        rows += [told(lambda: cudnn(*(t.transpose(1, 2) for t in grouped), None, True))]
    inplace = None
    if hasattr(aten, "_flash_attention_forward_no_dropout_inplace"):
        inplace = told(lambda: aten._flash_attention_forward_no_dropout_inplace(
            put(torch.zeros(q.shape)), q, k, v, None, None, 35, 40, 0.0, True, False))
print(json.dumps([rows, inplace]))
""",
        HOST_CUDA=host_cuda,
    )
    for ahead, back in rows:
        assert (ahead["pass"], back["pass"]) == (0, 1)
        assert_right(ahead)
        assert_right(back)
    assert inplace is None or len(inplace) == 1
    for row in inplace or []:
        assert_right(row)


def test_packed_sequences(trainer, host_cuda) -> None:
    """With offsets on the device all of a batch is described, and where they lie. Recomputed by them, each of its
    sequences is what the operation gave."""
    rows, single, left_out = trainer(
        f"""{DEVICE}
cu, cu_k = put(offsets(0, 5, 12, 12, 14)), put(offsets(0, 6, 17, 18, 21))
q, k, v = there((1, 14, 4, 8), (1, 21, 4, 8), (1, 21, 4, 8)); t = [x[0] for x in (q, k, v)]
def efficient(kind, cu=cu, cu_k=cu_k, bias=None):
    out, lse, seed, offset, n, m = aten._efficient_attention_forward(
        q, k, v, bias, cu, cu_k, 7, 11, 0.0, kind, True)
    g = put(torch.randn(out.shape))
    aten._efficient_attention_backward(
        g, q, k, v, bias, out, cu, cu_k, n, m, lse, 0.0, seed, offset, kind, False)
def flash(causal, cu=cu, cu_k=cu_k, q=t[0], k=t[1], v=t[2], longest=7):
    out, lse, seed, offset, _ = aten._flash_attention_forward(q, k, v, cu, cu_k, longest, 11, 0.0, causal, False)
    g = put(torch.randn(out.shape))
    aten._flash_attention_backward(g, q, k, v, out, lse, cu, cu_k, longest, 11, 0.0, causal, seed, offset)
with torch.no_grad():
    rows = told(lambda: [efficient(kind) for kind in (0, 1, 2)] + [flash(causal) for causal in (False, True)])
    rows += told(lambda: flash(True, q=put(torch.randn(14, 4, 8)), k=put(torch.randn(21, 2, 8)),
                               v=put(torch.randn(21, 2, 8))))
    # Of a single query of grouped heads flash-attn gives the sums in an order of its own.
    grouped = there((4, 4, 8), (21, 2, 8), (21, 2, 8))
    single = told(lambda: flash(True, put(offsets(0, 1, 2, 3, 4)), cu_k, *grouped, longest=1))
    left_out = dict(
        host=told(lambda: efficient(1, offsets(0, 14), put(offsets(0, 21)))),
        longer=told(lambda: efficient(1, put(offsets(0, 5, 12, 12, 14).long()), cu_k)),
        bias=told(lambda: efficient(0, put(offsets(0, 14)), put(offsets(0, 21)), put(torch.randn(14, 21)))))
    if hasattr(aten, "_cudnn_attention_forward"):
        left_out["cudnn"] = told(lambda: aten._cudnn_attention_forward(*t, None, cu, cu_k, 7, 11, True))
print(json.dumps([rows, single, left_out]))
""",
        HOST_CUDA=host_cuda,
    )
    assert len(rows) == 6 * 2
    for row in rows:
        assert_right(row)
        assert row["query"]["shape"] == [4, 14, 8, 1]
        assert row["query"]["device"] == [1, 0]
        assert row["offsets"] == [[0, 5, 12, 12, 14], [0, 6, 17, 18, 21]]
        assert row["longest"][0] == 7
        assert row["stream"] != 0
    for row in single:
        assert_right(row, has_sums=False)
        assert row["lse"] is None
    reasons = {name: {row.get("reason") for row in told} for name, told in left_out.items()}
    wanted = {"host": {LAYOUT}, "longer": {LAYOUT}, "bias": {MASK}} | (
        {"cudnn": {LAYOUT}} if "cudnn" in left_out else {}
    )
    assert reasons == wanted


def test_what_cannot_be_described(trainer, host_cuda) -> None:
    reasons, sums = trainer(
        f"""{DEVICE}
q, k, v = there((2, 16, 4, 8), (2, 16, 4, 8), (2, 16, 4, 8)); h = [t.transpose(1, 2) for t in (q, k, v)]
one = put(torch.ones(2, dtype=torch.int32))
def reason(call):
    with torch.no_grad(): (row,) = told(call)
    return row.get("reason")
def efficient(kind=0, with_lse=True, **more):
    aten._efficient_attention_forward(q, k, v, None, None, None, None, None, 0.0, kind, with_lse, **more)
def flash(**more): aten._flash_attention_forward(q, k, v, None, None, 16, 16, 0.0, True, False, **more)
reasons = dict(
    window=reason(lambda: efficient(1, window_size=4)), no_window=reason(lambda: efficient(1, window_size=0)),
    lengths=reason(lambda: efficient(seqlen_k=one)), left=reason(lambda: flash(window_size_left=4)),
    wide=reason(lambda: flash(window_size_left=16)), slopes=reason(lambda: flash(alibi_slopes=one)),
    used=reason(lambda: flash(seqused_k=one)))
with torch.no_grad():
    (row,) = told(lambda: efficient(with_lse=False))
    if "quantized" in aten._scaled_dot_product_flash_attention.overloads():
        library = torch.library.Library("aten", "IMPL")
        library.impl("_scaled_dot_product_flash_attention.quantized", lambda q, k, v, *more, **words: (
            put(get(q).float().bfloat16()), put(torch.zeros(q.shape[:3])), None, None, 1, 1, one, one, None), "CUDA")
        fp8 = [put(get(t).to(torch.float8_e4m3fn)) for t in h]
        reasons["fp8"] = reason(lambda: aten._scaled_dot_product_flash_attention.quantized(*fp8, one, one, one))
print(json.dumps([reasons, [row["lse"], row["errors"]["out"]]]))
""",
        HOST_CUDA=host_cuda,
    )
    wanted = {"window": MASK, "no_window": None, "left": None, "wide": None, "slopes": MASK}
    wanted |= {"lengths": LAYOUT, "used": LAYOUT}
    assert reasons == wanted | ({"fp8": FP8} if "fp8" in reasons else {})
    assert sums[0] is None
    assert 0 <= sums[1] <= ROUNDED
