"""Attention operations of other packages, by name: counted, described as what they are, or left out with a reason.

The packages are stand-ins of the same schema (tests/support/attention_packages.py), registered after the hooks.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.quick

LAYOUT, MASK, DROPOUT, FP8, UNKNOWN = 7, 6, 2, 5, 10  # FORESHOCK_SKIP_... of hook.h

PACKAGES = """
import attention_packages as packages
def fingerprint(t):
    flat = t.detach().double().expand(*t.shape).reshape(-1)
    return (flat * torch.arange(1, flat.numel() + 1, dtype=torch.double)).sum().item()
def heads_first(*tensors): return [fingerprint(t.transpose(1, 2)) for t in tensors]
def outcome(work):
    events(); work(); rows = events()
    return [[row["event"], row.get("reason")] for row in rows if row["event"] in ("enter", "leave", "skip")]
def bnhd(b=2, n=16, m=16, h=4, g=4, d=8, dtype=torch.float32):
    return [torch.randn(b, n, h, d).to(dtype), torch.randn(b, m, g, d).to(dtype), torch.randn(b, m, g, d).to(dtype)]
"""


def near(found: list[float], truth: list[float]) -> bool:
    """The fake core and torch add the same fp64 numbers in another order: 5e4 terms, 2^-53 each, times their growth."""
    return all(abs(a - b) <= 1e-9 * (1 + abs(b)) for a, b in zip(found, truth, strict=True))


def prints(row: dict, *names: str) -> list[float]:
    return [row[name]["fingerprint"] for name in names]


def test_flash_attn_both_ways(trainer) -> None:
    """Its queries come out of autograd.Function, where gradients are switched off; the layer is found all the same."""
    rows, ahead, back, identity = trainer(f"""{PACKAGES}
packages.define("flash_attn")
layer = torch.nn.Linear(32, 32)
x = torch.randn(2, 16, 32); k, v = torch.randn(2, 2, 24, 2, 8).unbind(0); k.requires_grad_()
q = layer(x).view(2, 16, 4, 8); q.retain_grad()
out = packages.FlashAttention.apply(q, k, v, True); g = torch.randn_like(out)
events_before = events()
out.backward(g)
ahead = heads_first(q, k, v, out); back = heads_first(g, q.grad)
print(json.dumps([events_before + events(), ahead, back, layer.weight._cdata]))
""")
    calls = [row for row in rows if row["event"] in ("enter", "leave", "skip")]
    assert [(row["event"], row["op"]) for row in calls] == [
        ("enter", "flash_attn::_flash_attn_forward"),
        ("leave", "flash_attn::_flash_attn_forward"),
        ("enter", "flash_attn::_flash_attn_backward"),
        ("leave", "flash_attn::_flash_attn_backward"),
    ]
    assert calls[0]["flags"] & 1
    assert calls[1]["query"]["shape"] == [2, 4, 16, 8]
    assert calls[1]["key"]["shape"] == [2, 2, 24, 8]
    assert calls[1]["lse"]["shape"][:3] == [2, 4, 16]
    assert near(prints(calls[1], "query", "key", "value", "out"), ahead)
    assert near(prints(calls[3], "grad_out", "grad_query"), back)
    assert {(row["causal"], row["scale"], row["layer"]) for row in (calls[1], calls[3])} == {(2, 8**-0.5, identity)}


def test_flash_attn_compiled(trainer) -> None:
    seen = trainer(f"""{PACKAGES}
packages.define("flash_attn")
step = torch.compile(lambda q, k, v: packages.FlashAttention.apply(q, k, v, True).square().sum(), backend="aot_eager")
rows = []
for _ in range(2):
    q, k, v = (t.requires_grad_() for t in bnhd())
    events(); step(q, k, v).backward(); rows.append(events())
print(json.dumps([[count(r, "enter", (p,)) for p in (0, 1)] + [count(r, "leave")] for r in rows]))
""")
    assert seen == [[1, 1, 2]] * 2


def test_packed_sequences(trainer) -> None:
    """All of the batch is described, and where its sequences begin: recomputed one by one they are what came out."""
    rows, truth, skipped = trainer(f"""{PACKAGES}
packages.define("flash_attn"); packages.define("xformers")
cu = torch.tensor([0, 5, 5, 12, 14], dtype=torch.int32); cu_k = torch.tensor([0, 6, 9, 20, 23], dtype=torch.int32)
q, k, v = torch.randn(14, 4, 8), torch.randn(23, 2, 8), torch.randn(23, 2, 8)
op = torch.ops.flash_attn
events()
out, lse, _, state = op._flash_attn_varlen_forward(q, k, v, cu, cu_k, 7, 11, 0.0, 0.25, True)
g = torch.randn_like(out); grads = [torch.empty_like(t) for t in (q, k, v)]
op._flash_attn_varlen_backward(
    g, q, k, v, out, lse, *grads, cu, cu_k, 7, 11, 0.0, 0.25, True, -1, -1, 0.0, None, False)
torch.ops.xformers_flash.flash_bwd(True, g, q, k, v, out, lse, cu, cu_k, 7, 11, 0.0, 0.25, True, -1, -1, state)
rows = events()
truth = [fingerprint(t.transpose(0, 1)) for t in (q, k, v, out, g, grads[0])] + [fingerprint(lse)]
used = torch.tensor([5, 3, 11, 3], dtype=torch.int32)
def plain(cu=cu, **more):
    return outcome(lambda: op._flash_attn_varlen_forward(q, k, v, cu, cu_k, 7, 11, 0.0, 0.25, False, **more))
skipped = [plain(seqused_k=used), plain(block_table=used[:, None]), plain(leftpad_k=used), plain(cu.long()), plain()]
print(json.dumps([[row for row in rows if row["event"] != "enter"], truth, skipped]))
""")
    assert [(row["event"], row["pass"]) for row in rows] == [("leave", 0), ("leave", 1), ("leave", 1)]
    q, k, v, out, g, dq, lse = truth
    for row in rows:
        assert row["query"]["shape"] == [4, 14, 8, 1]
        assert row["key"]["shape"] == [2, 23, 8, 1]
        assert row["query"]["dims"] == 3
        assert row["offsets"] == [[0, 5, 5, 12, 14], [0, 6, 9, 20, 23]]
        assert row["longest"] == [7, 11]
        assert row["causal"] == 2
        names = ["query", "key", "value", "out", "lse"] + ["grad_out", "grad_query"] * row["pass"]
        assert near(prints(row, *names), [q, k, v, out, lse] + [g, dq] * row["pass"])
        # The stand-ins compute in fp64 and round once to fp32: 2^-24 of each value, twice that for what is added up.
        assert 0 <= row["errors"]["out"] <= 2**-23
        assert 0 <= row["errors"]["lse"] <= 16 * 2**-23
        assert row["pass"] == 0 or 0 <= row["errors"]["grad_query"] <= 2**-23
    assert [one[-1] for one in skipped] == [["skip", LAYOUT]] * 4 + [["leave", None]]


def test_windows_and_soft_caps_are_described(trainer) -> None:
    """Recomputed from its description, each call is what came out, so windows have the right alignment and ends."""
    rows, packed = trainer(f"""{PACKAGES}
for name in ("flash_attn", "flash_attn_3", "xformers"): packages.define(name)
op, op3, x = torch.ops.flash_attn, torch.ops.flash_attn_3, torch.ops.xformers_flash
q, k, v = bnhd(m=24, g=2); g = torch.randn(2, 16, 4, 8); grads = lambda: [torch.empty_like(t) for t in (q, k, v)]
events()
for causal, left, right, cap in ((False, 4, 3, 0.0), (True, 5, -1, 0.5), (False, -1, 2, 0.0), (False, 7, -1, 0.0),
                                 (False, 0, 0, 0.0), (True, 23, 40, 1.0), (False, 24, 24, 0.0)):
    out, lse, _, state = op._flash_attn_forward(q, k, v, 0.0, 0.25, causal, left, right, cap, None, False)
    op._flash_attn_backward(g, q, k, v, out, lse, *grads(), 0.0, 0.25, causal, left, right, cap, None, False)
out, lse, *_ = op3._flash_attn_forward(q, k, v, causal=True, window_size_left=6, softcap=0.5)
a, b, c = grads()
op3._flash_attn_backward(g, q, k, v, out, lse, dq=a, dk=b, dv=c, is_causal=True, window_size_left=6, softcap=0.5)
x.flash_fwd(q, k, v, None, None, None, 16, 24, 0.0, 0.25, True, 6, -1, False, None)
rows = events("leave")
cu = torch.tensor([0, 5, 5, 12, 14], dtype=torch.int32); cu_k = torch.tensor([0, 6, 9, 20, 23], dtype=torch.int32)
q, k, v, g = torch.randn(14, 4, 8), torch.randn(23, 2, 8), torch.randn(23, 2, 8), torch.randn(14, 4, 8)
out, lse, _, state = op._flash_attn_varlen_forward(q, k, v, cu, cu_k, 7, 11, 0.0, 0.25, True, 2, -1, 0.5)
op._flash_attn_varlen_backward(
    g, q, k, v, out, lse, *grads(), cu, cu_k, 7, 11, 0.0, 0.25, True, 2, -1, 0.5, None, False)
out, lse, state = x.flash_fwd(q, k, v, cu, cu_k, None, 7, 11, 0.0, 0.25, False, 3, 1, False, None)
x.flash_bwd(True, g, q, k, v, out, lse, cu, cu_k, 7, 11, 0.0, 0.25, False, 3, 1, state)
print(json.dumps([rows, events("leave")]))
""")
    windows = [row.get("window") for row in rows]
    both_ways = [[2, 4, 3], [2, 5, 0], [2, -1, 2], [2, 7, -1], [2, 0, 0], [2, 23, 0], None, [2, 6, 0]]
    assert windows == [window for window in both_ways for _ in range(2)] + [[2, 6, 0]]
    assert [row["soft_cap"] for row in rows[:4]] == [0, 0, 0.5, 0.5]
    assert [row.get("window") for row in packed] == [[2, 2, 0]] * 2 + [[2, 3, 1]] * 2
    for row in rows + packed:
        # As in test_packed_sequences; a soft cap of 0.5 adds roundings of tanh.
        assert 0 <= row["errors"]["out"] <= 2**-22, row
        assert 0 <= row["errors"]["lse"] <= 16 * 2**-22
        assert row["pass"] == 0 or 0 <= row["errors"]["grad_query"] <= 2**-22, row


def test_outermost_wins(trainer) -> None:
    """flash_attn_3's own operation calls another one of its package; xformers' may call torch's."""
    rows, truth = trainer(f"""{PACKAGES}
packages.define("flash_attn_3"); packages.define("xformers")
q, k, v = bnhd(m=24, g=2); events()
out, lse, *_ = torch.ops.flash_attn_3._flash_attn_forward(q, k, v, causal=True)
grads = [torch.empty_like(t) for t in (q, k, v)]
torch.ops.flash_attn_3._flash_attn_backward(
    out, q, k, v, out, lse, dq=grads[0], dk=grads[1], dv=grads[2], is_causal=True)
torch.ops.xformers_flash.flash_fwd(q, k, v, None, None, None, 16, 24, 0.0, 0.25, True, -1, -1, False, None)
print(json.dumps([events(), heads_first(q, k, v, out, grads[0])]))
""")
    calls = [(row["event"], row["op"]) for row in rows if row["event"] != "unseen"]
    assert calls == [
        (event, op)
        for op in (
            "flash_attn_3::_flash_attn_forward",
            "flash_attn_3::_flash_attn_backward",
            "xformers_flash::flash_fwd",
        )
        for event in ("enter", "leave")
    ]
    leave = [row for row in rows if row["event"] == "leave"]
    assert near(prints(leave[1], "query", "key", "value", "out", "grad_query"), truth)
    assert near(prints(leave[2], "query", "key", "value"), truth[:3])
    assert [row["scale"] for row in leave] == [1 / 8**0.5, 1 / 8**0.5, 0.25]


def test_what_cannot_be_recomputed_is_left_out_with_a_reason(trainer) -> None:
    seen = trainer(f"""{PACKAGES}
packages.define("flash_attn"); packages.define("flash_attn_3")
q, k, v = bnhd(); slopes = torch.ones(4)
def two(left=-1, right=-1, softcap=0.0, alibi=None, causal=False, q=q):
    return outcome(lambda: torch.ops.flash_attn._flash_attn_forward(
        q, k, v, 0.0, 0.25, causal, left, right, softcap, alibi, False))[-1]
def three(q=q, **more): return outcome(lambda: torch.ops.flash_attn_3._flash_attn_forward(q, k, v, **more))[-1]
def drop(): return outcome(lambda: torch.ops.flash_attn._flash_attn_forward(
    q, k, v, 0.5, 0.25, False, -1, -1, 0.0, None, False))
def throws():
    try: torch.ops.flash_attn._flash_attn_forward(q[..., :4], k, v, 0.0, 0.25, False, -1, -1, 0.0, None, False)
    except RuntimeError: pass
lse = torch.empty(2, 4, 16)
def backward(dq): return outcome(lambda: torch.ops.flash_attn._flash_attn_backward(
    q, q, k, v, q, lse, dq, None, None, 0.0, 0.25, False, -1, -1, 0.0, None, False))[-1]
print(json.dumps(dict(
    window=two(left=4), right=two(right=3), softcap=two(softcap=30.0), alibi=two(alibi=slopes), wide=two(left=16),
    as_causal=two(right=0), causal_window=two(right=5, causal=True), blind=two(causal=True, q=bnhd(n=20)[0]),
    blind_left=two(left=4, q=bnhd(n=20)[0]), blind_right=two(right=17, q=bnhd(n=20)[0]),
    pages=three(page_table=slopes), chunk=three(attention_chunk=2), appended=three(k_new=k, v_new=v),
    described=three(), dropout=drop()[-1], throws=outcome(throws)[-1], no_dq=backward(None),
    dq=backward(torch.empty_like(q)))))
""")
    left_out = {
        "alibi": MASK, "blind": MASK, "blind_left": MASK, "blind_right": MASK, "pages": LAYOUT, "chunk": MASK,
        "appended": LAYOUT, "throws": UNKNOWN,
    }  # fmt: skip
    assert {name: reason for name, (event, reason) in seen.items() if event == "skip"} == left_out
    # The core itself leaves out dropout, and a backward call without the gradient of its query.
    described = {
        "window",
        "right",
        "softcap",
        "wide",
        "as_causal",
        "causal_window",
        "described",
        "dropout",
        "dq",
        "no_dq",
    }
    assert {name for name, (event, _) in seen.items() if event == "leave"} == described


def test_waiting_kernels_are_not_seen_by_feature_tests(trainer) -> None:
    """A package that is not there stays not there, and what looks like attention and is unknown is named."""
    names, rows, after = trainer(f"""{PACKAGES}
there = [hasattr(getattr(torch.ops, space), name) for space, name in (
    ("flash_attn", "_flash_attn_forward"), ("xformers_flash", "flash_fwd"), ("flash_attn_3", "_flash_attn_forward"))]
first = events("unseen")
packages.define("stranger"); packages.define("flash_attn")
registered = events("unseen"); q = torch.randn(2, 16, 4, 8)
for _ in range(2): torch.ops.stranger.attend(q, q, q, 0.25)
torch.ops.stranger.attend(*[q.to("meta")] * 3, 0.25)
print(json.dumps([there + [first], registered, events("unseen")]))
""")
    assert names == [False, False, False, []]
    assert rows == []  # an operation that is registered and never called is not worth a word
    assert [(row["name"], row["evidence"]) for row in after] == [("stranger::attend", 1)]


def test_a_namespace_of_a_vendor_is_recognised_by_its_schema(trainer) -> None:
    """As packages of the Hugging Face hub register flash-attn's operations: before and after the hooks, unloaded and
    loaded again, eager and compiled. What differs by an argument is another operation."""
    rows, truth, again, other, compiled = trainer(f"""{PACKAGES}
vendor = packages.Vendor("_flash_attn2_588b404")
q, k, v = bnhd(m=24, g=2)
out, lse, *_ = vendor.call(q, k, v)
grads = [torch.empty_like(t) for t in (q, k, v)]
vendor.back(out, q, k, v, out, lse, grads)
rows = [row for row in events() if row["event"] == "leave"]
truth = heads_first(q, k, v, out, grads[0])
vendor.unload()
vendor = packages.Vendor("_flash_attn2_588b404"); events(); vendor.call(q, k, v); again = events("leave")
other = packages.Vendor("_else_1", more=", int rounds=1"); events(); other.call(q, k, v); other = events()
step = torch.compile(lambda q: vendor.call(q * 1, k, v)[0] * 2, backend="aot_eager")
compiled = []
for _ in range(2): events(); step(q); compiled.append(count(events(), "leave"))
print(json.dumps([rows, truth, again, other, compiled]))
""")
    assert [row["op"] for row in rows] == [
        f"_flash_attn2_588b404::_flash_attn_{way}" for way in ("forward", "backward")
    ]
    assert near(prints(rows[1], "query", "key", "value", "out", "grad_query"), truth)
    assert [row["causal"] for row in rows] == [2, 2]
    assert len(again) == 1
    assert [(row["event"], row["name"]) for row in other] == [("unseen", "_else_1::_flash_attn_forward")]
    assert compiled == [1, 1]


def test_a_thousand_namespaces_and_the_compiled_part_of_flash_attn_3(trainer) -> None:
    """The core has numbers for 64 operations, so an operation gets one when it is first called."""
    calls, raw = trainer(f"""{PACKAGES}
vendors = [packages.Vendor(f"_vendor_{{n}}") for n in range(1000)]
q, k, v = bnhd(); events()
for vendor in vendors[::250]: vendor.call(q, k, v)
calls = [row["op"] for row in events("leave")]
packages.define("flash_attn_3_raw"); events()
out, lse, *_ = torch.ops.raw_3.fwd(q, k, v, is_causal=True)
torch.ops.raw_3.bwd(out, q, k, v, out, lse, is_causal=True)
print(json.dumps([calls, [row for row in events() if row["event"] == "leave"]]))
""")
    assert calls == [f"_vendor_{n}::_flash_attn_forward" for n in range(0, 1000, 250)]
    assert [row["op"] for row in raw] == ["raw_3::fwd", "raw_3::bwd"]
    for row in raw:
        assert 0 <= row["errors"]["out"] <= 2**-23
    assert 0 <= raw[1]["errors"]["grad_query"] <= 2**-23


def test_varlen_of_torch_is_counted_by_its_inner_operation(trainer) -> None:
    """On a CPU it has no kernel, so the call fails, with us and without us; it counts as one of an unknown fate."""
    pytest.importorskip("torch.nn.attention.varlen", reason="not in torch 2.6")
    message, plain, rows = trainer("""
        from torch.nn.attention.varlen import varlen_attn
        cu = torch.tensor([0, 4, 8], dtype=torch.int32); q, k, v = torch.randn(3, 8, 2, 16).unbind(0)
        def failure():
            try: varlen_attn(q, k, v, cu, cu, 4, 4)
            except Exception as error: return [type(error).__name__, str(error).splitlines()[0]]
        events(); ours = failure(); rows = events()
        torch._C._dispatch_tls_set_dispatch_key_excluded(torch._C.DispatchKey.BackendSelect, True)
        plain = failure()
        print(json.dumps([ours, plain, rows]))
    """)
    assert message == plain
    assert message is not None
    assert [(row["event"], row["op"]) for row in rows if row["event"] != "unseen"] in (
        [],
        [("enter", "_flash_attention_forward"), ("skip", "_flash_attention_forward")],
    )
