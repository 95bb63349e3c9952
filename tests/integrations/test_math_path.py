"""Attention on the unfused path: every forward call in eager code is counted; it is sampled if asked for."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.quick

OP = "_scaled_dot_product_attention_math"
FUSED = "_scaled_dot_product_flash_attention_for_cpu"
OFF = 9  # FORESHOCK_SKIP_OFF


def test_every_forward_call_is_counted_once(trainer) -> None:
    seen = trainer("""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        q, k, v = qkv()
        def math(**more):
            with sdpa_kernel(SDPBackend.MATH): sdpa(q, k, v, **more).sum().backward()
        def no_grad():
            with torch.no_grad(): sdpa(q, k, v, dropout_p=0.5)
        def learned_mask(): sdpa(q, k, v, attn_mask=torch.zeros(16, 16, requires_grad=True)).sum().backward()
        def other_softmax(): torch.softmax(q, -1); F.softmax(q, -1).sum().backward()
        def mha(): torch.nn.MultiheadAttention(8, 2, dropout=0.1)(q[0], q[0], q[0], need_weights=False)
        def fake():
            from torch._subclasses.fake_tensor import FakeTensorMode
            with FakeTensorMode(): sdpa(*qkv(), dropout_p=0.5)
        cases = dict(dropout=lambda: sdpa(q, k, v, dropout_p=0.5).sum().backward(), math=math,
                     causal=lambda: math(is_causal=True), three=lambda: sdpa(q[0], k[0], v[0]),
                     learned_mask=learned_mask, no_grad=no_grad, mha=mha, fused=lambda: sdpa(q, k, v),
                     other_softmax=other_softmax, fake=fake)
        out = {}
        for name, work in cases.items():
            events(); work()
            out[name] = [[r["event"], r["op"], r.get("flags", r.get("reason"))] for r in events() if "op" in r]
        print(json.dumps(out))
    """)
    counted = [["enter", OP, 1], ["skip", OP, OFF]]
    fused = [["enter", FUSED, 1], ["leave", FUSED, None]]
    assert seen.pop("fused") == fused
    # Without a batch: the fused path from torch 2.14 on.
    assert seen.pop("three") in (counted, fused)
    assert seen.pop("no_grad") == [["enter", OP, 0], ["skip", OP, OFF]]
    assert seen.pop("other_softmax") == seen.pop("fake") == []
    assert seen == dict.fromkeys(seen, counted)


def test_sampled_if_asked_for_in_sampled_steps(trainer) -> None:
    """The window opens and closes at the ends of steps; inside it a call is described, outside of it only counted."""
    rows, truth = trainer("""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        def fingerprint(t):
            flat = t.detach().double().reshape(-1)
            return (flat * torch.arange(1, flat.numel() + 1, dtype=torch.double)).sum().item()
        lin = torch.nn.Linear(8, 8); opt = torch.optim.SGD(lin.parameters(), lr=0.1); rows, truth = [], []
        def taken(): rows.append([r for r in events() if "op" in r])
        taken(); rows.clear()
        for sampled in (1, 1, 0, 0, 1):
            _fake.fake_sample(sampled)
            q, k, v = qkv(); q = lin(q)
            with sdpa_kernel(SDPBackend.MATH): out = sdpa(q, k, v, is_causal=True, scale=0.25)
            torch.softmax(out, -1); out.sum().backward(); taken(); opt.step(); opt.zero_grad()
            truth.append([fingerprint(t) for t in (q, k, v, out)])
        sdpa(q, k, v, dropout_p=0.5); taken()
        try: sdpa(q, k[..., :4], v, dropout_p=0.5)
        except RuntimeError: taken()
        print(json.dumps([rows, truth]))
    """, FORESHOCK_MATH_PATH="on")  # fmt: skip
    assert {row["op"] for step in rows for row in step} == {OP}
    events = [[row["event"] for row in step] for step in rows]
    counted, described, open_but_not_sampled = ["enter", "skip"], ["enter", "leave"], ["enter"]
    assert events == [
        counted, described, open_but_not_sampled, open_but_not_sampled, counted, described, ["enter", "skip"],
    ]  # fmt: skip
    second = rows[1][1]
    assert (second["causal"], second["scale"]) == (1, 0.25)
    found = [second[name]["fingerprint"] for name in ("query", "key", "value", "out")]
    # The same fp64 numbers in another order: 5e4 terms, 2^-53 each, times their growth.
    assert all(abs(a - b) <= 1e-9 * (1 + abs(b)) for a, b in zip(found, truth[1], strict=True))
    assert rows[5][1]["dropout"] == 0.5
    assert [row.get("reason") for row in rows[0] + rows[6]] == [None, OFF, None, 10]
