"""Attention on the unfused path: every forward call in eager code is counted; both passes are sampled."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.quick

OP = "_scaled_dot_product_attention_math"
FUSED = "_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = OP + "_backward"
OFF, SET_UP, UNKNOWN = 9, 13, 10  # FORESHOCK_SKIP_...


@pytest.mark.parametrize(("setting", "reason"), [("on", SET_UP), ("off", OFF)])
def test_every_forward_call_is_counted_once(trainer, setting: str, reason: int) -> None:
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
    """, FORESHOCK_MATH_PATH=setting)  # fmt: skip
    counted = [["enter", OP, 1], ["skip", OP, reason]]
    fused = [["enter", FUSED, 1], ["leave", FUSED, None]]
    assert seen.pop("fused") == fused
    # Without a batch: the fused path from torch 2.14 on.
    assert seen.pop("three") in (counted, fused)
    assert seen.pop("no_grad") == [["enter", OP, 0], ["skip", OP, reason]]
    assert seen.pop("other_softmax") == seen.pop("fake") == []
    assert seen == dict.fromkeys(seen, counted)


def test_both_passes_are_sampled_in_sampled_steps(trainer) -> None:
    """The window opens and closes at the ends of steps; inside it a call is described, outside of it only counted. The
    first backward pass over a graph is described, with the gradients of this call alone."""
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
            torch.softmax(out, -1); loss = out.square().sum() + q.sum() + k.sum()
            grads = torch.autograd.grad(out.square().sum(), (q, k, v), retain_graph=True)
            loss.backward(); taken(); opt.step(); opt.zero_grad()
            truth.append([fingerprint(t) for t in (q, k, v, out, 2 * out, *grads)])
        sdpa(q, k, v, dropout_p=0.5); taken()
        try: sdpa(q, k[..., :4], v, dropout_p=0.5)
        except RuntimeError: taken()
        print(json.dumps([rows, truth]))
    """)
    events = [[(row["event"], row["op"]) for row in step] for step in rows]
    counted, described = [("enter", OP), ("skip", OP)], [("enter", OP), ("leave", OP)]
    backward, open_but_not_sampled = [("enter", BACKWARD), ("leave", BACKWARD)], [("enter", OP), ("enter", BACKWARD)]
    assert events == [
        counted, described + backward, open_but_not_sampled, [("enter", OP)], counted, described, counted,
    ]  # fmt: skip
    forward, backward = rows[1][1], rows[1][3]
    assert (forward["causal"], forward["scale"]) == (backward["causal"], backward["scale"]) == (1, 0.25)
    names = ("query", "key", "value", "out", "grad_out", "grad_query", "grad_key", "grad_value")
    for row, count in ((forward, 4), (backward, 8)):
        found = [row[name]["fingerprint"] for name in names[:count]]
        # The same fp64 numbers in another order: 5e4 terms, 2^-53 each, times their growth.
        assert all(abs(a - b) <= 1e-9 * (1 + abs(b)) for a, b in zip(found, truth[1][:count], strict=True))
    assert rows[5][1]["dropout"] == 0.5
    assert [row.get("reason") for row in rows[0] + rows[6]] == [None, SET_UP, None, UNKNOWN]


def test_a_backward_pass_that_cannot_be_told_is_not_described(trainer) -> None:
    """Each is skipped or not followed; the results are those without a monitor."""
    seen = trainer("""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        lin = torch.nn.Linear(8, 8); opt = torch.optim.SGD(lin.parameters(), lr=0.1); seen = {}
        def step(): lin(torch.ones(8)).sum().backward(); opt.step(); opt.zero_grad()
        def math(*inputs, **more):
            with sdpa_kernel(SDPBackend.MATH): return sdpa(*inputs, **more)
        def changed():
            q, k, v = (t * 1 for t in qkv()); out = math(q, k, v); v.detach().add_(1)
            try: out.sum().backward()
            except RuntimeError: pass  # torch has saved v
        def written():  # torch has not saved the output, so this is allowed
            out = math(*qkv()); loss = (out * 1).sum(); out.detach().zero_(); loss.backward()
        def one_tensor():
            q = qkv()[0]; math(q, q, q).sum().backward()
        def frozen_keys():
            q, k, v = qkv(); math(q, k.detach(), v.detach()).sum().backward()
        def no_backward(): math(*qkv())
        def dies():
            import weakref
            q, k, v = (t * 1 for t in qkv()); out = math(q, k, v); end = weakref.finalize(out, int)
            end.atexit = False; out.sum().backward(); del out; seen["freed"] = not end.alive
        math(*qkv()); step()
        for case in (changed, written, one_tensor, frozen_keys, no_backward, dies):
            events(); case()
            seen[case.__name__] = [[r["event"], r.get("reason"), r.get("grad_key") is not None] for r in events()
                                   if r.get("op", "").endswith("_backward")]
        print(json.dumps(seen))
    """)
    assert seen.pop("freed") is True
    skipped = [["enter", None, False], ["skip", UNKNOWN, False]]
    assert seen.pop("written") == skipped
    assert seen.pop("changed") in ([], skipped)
    assert seen.pop("frozen_keys") == [["enter", None, False], ["leave", None, False]]
    assert seen.pop("dies") == [["enter", None, False], ["leave", None, True]]
    assert seen == {"one_tensor": [], "no_backward": []}


def test_a_call_in_a_compiled_graph_is_not_understood(trainer) -> None:
    """It is counted, and longer training would not sample it."""
    rows = trainer("""
        attend = torch.compile(lambda q, k, v: sdpa(q, k, v, dropout_p=0.5), backend="aot_eager")
        lin = torch.nn.Linear(8, 8); opt = torch.optim.SGD(lin.parameters(), lr=0.1); q, k, v = qkv(); rows = []
        _fake.fake_sample(1); events()
        for _ in range(3):
            attend(lin(q), k, v).sum().backward(); opt.step(); opt.zero_grad()
            rows.append([row["reason"] for row in events() if row["event"] == "skip"])
        print(json.dumps(rows))
    """)
    assert rows == [[SET_UP], [UNKNOWN], [UNKNOWN]]
