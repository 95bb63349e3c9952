"""The attention hook: which calls it sees, how often, and how it describes them."""

from __future__ import annotations

import math

import pytest
from torch_version import TORCH

pytestmark = pytest.mark.quick


def test_forward_and_backward_are_seen_once(trainer) -> None:
    rows = trainer("""
        q, k, v = qkv()
        sdpa(q, k, v, is_causal=True).sum().backward()
        print(json.dumps(events()))
    """)
    calls = [row for row in rows if row["event"] in ("enter", "leave")]
    assert [(row["event"], row["pass"]) for row in calls] == [
        ("enter", 0),
        ("leave", 0),
        ("enter", 1),
        ("leave", 1),
    ]
    assert calls[0]["flags"] == 1
    assert calls[2]["flags"] == 3
    assert calls[1]["causal"] == 1


def test_description_is_what_the_tensors_hold(trainer) -> None:
    """The fingerprint depends on every value and on its place, so wrong strides, shapes or types change it."""
    shown, truth = trainer("""
        def fingerprint(t):
            flat = t.detach().double().expand(*t.shape).reshape(-1)
            return (flat * torch.arange(1, flat.numel() + 1, dtype=torch.double)).sum().item()
        out = []
        truth = []
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(2, 16, 3, 4, 8, dtype=dtype)          # strided: heads inside positions
            q, k, v = [t.transpose(1, 2).requires_grad_() for t in x.unbind(2)]
            for tensor in (q, k, v): tensor.retain_grad()
            g = torch.randn(2, 4, 16, 8, dtype=dtype)
            mask = torch.randn(1, 1, 16, 16, dtype=dtype)
            o = sdpa(q, k, v, attn_mask=mask, scale=0.25)
            o.backward(g)
            out += events("leave")
            full = mask.expand(2, 4, 16, 16)
            truth += [[fingerprint(t) for t in (q, k, v, o, full)], [fingerprint(t) for t in (g, q.grad)]]
        print(json.dumps([out, truth]))
    """)
    names = [("query", "key", "value", "out", "mask"), ("grad_out", "grad_query")] * 2
    for row, which, values in zip(shown, names, truth, strict=True):
        assert row["scale"] == 0.25
        for name, value in zip(which, values, strict=True):
            # Both sides add the same fp64 numbers in different order: 5e4 terms, 2^-53 each, times their growth.
            assert abs(row[name]["fingerprint"] - value) <= 1e-9 * (1 + abs(value)), name


def test_a_scale_of_zero_is_not_the_default(trainer) -> None:
    scales = trainer("""
        q, k, v = qkv()
        for more in ({}, dict(scale=None), dict(scale=0.0), dict(scale=-2.0)): sdpa(q, k, v, **more).sum().backward()
        print(json.dumps([row["scale"] for row in events("leave")]))
    """)
    assert scales == [1 / math.sqrt(8)] * 4 + [0.0] * 2 + [-2.0] * 2


@pytest.mark.skipif(TORCH < (2, 7), reason="grouped heads take the math path on the CPU before torch 2.7")
def test_grouped_heads(trainer) -> None:
    (grouped,) = trainer("""
        q = torch.randn(2, 8, 16, 8); k, v = torch.randn(2, 2, 2, 24, 8).unbind(0)
        sdpa(q, k, v, enable_gqa=True); print(json.dumps(events("leave")))
    """)
    assert grouped["query"]["shape"] == [2, 8, 16, 8]
    assert grouped["key"]["shape"] == [2, 2, 24, 8]
    assert abs(grouped["scale"] - 8**-0.5) < 1e-15


def test_defaults_and_bool_masks(trainer) -> None:
    masked, plain = trainer("""
        q, k, v = qkv(grad=False)
        sdpa(q, k, v, attn_mask=torch.ones(16, 16, dtype=torch.bool).tril()); masked = events("leave")
        sdpa(q, k, v); plain = events("leave")
        print(json.dumps([masked, plain]))
    """)
    assert abs(plain[0]["scale"] - 8**-0.5) < 1e-15
    assert masked[0]["mask"]["shape"] == [2, 4, 16, 16]
    assert plain[0]["mask"] is None
    assert plain[0]["lse"]["shape"][:3] == [2, 4, 16]


def test_ways_to_call(trainer) -> None:
    """(forward, backward) calls in each situation; what holds no data is not counted."""
    seen = trainer("""
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.utils.checkpoint import checkpoint
        def counted(work):
            events(); work(); rows = events()
            return [count(rows, "enter", (0,)), count(rows, "enter", (1,)), count(rows, "leave")]
        q, k, v = qkv()
        def no_grad():
            with torch.no_grad(): sdpa(q, k, v)
        def inference():
            with torch.inference_mode(): sdpa(q, k, v)
        def autocast():
            with torch.autocast("cpu", torch.bfloat16): sdpa(q, k, v).sum().backward()
        def fake():
            with FakeTensorMode(): sdpa(*qkv()).sum().backward()
        def meta():
            sdpa(*[t.to("meta") for t in (q, k, v)])
        def again(reentrant):
            return lambda: checkpoint(sdpa, q, k, v, use_reentrant=reentrant).sum().backward()
        def vmap():
            torch.vmap(sdpa)(*[torch.stack([t.detach()] * 3) for t in (q, k, v)])
        def dropout():
            sdpa(q, k, v, dropout_p=0.5)
        names = dict(no_grad=no_grad, inference=inference, autocast=autocast, fake=fake, meta=meta,
                     recompute=again(False), recompute_reentrant=again(True), vmap=vmap, math_path=dropout)
        print(json.dumps({name: counted(work) for name, work in names.items()}))
    """)
    assert seen == {
        "no_grad": [1, 0, 1],
        "inference": [1, 0, 1],
        "autocast": [1, 1, 2],
        "fake": [0, 0, 0],
        "meta": [0, 0, 0],
        "recompute": [2, 1, 3],
        "recompute_reentrant": [2, 1, 3],
        "vmap": [3, 0, 3],
        "math_path": [1, 0, 0],
    }


@pytest.mark.long
def test_compiled_model_is_seen_once_per_step(trainer) -> None:
    seen = trainer("""
        compiled = torch.compile(lambda q, k, v: sdpa(q * 2, k, v).sum())
        rows = []
        for _ in range(3):
            compiled(*qkv()).backward(); rows.append(events())
        print(json.dumps([[count(r, "enter", (0,)), count(r, "enter", (1,))] for r in rows]))
    """)
    assert seen == [[1, 1]] * 3


def test_exceptions_pass_untouched(trainer) -> None:
    first, second, rows, after = trainer("""
        q, k, v = qkv(grad=False)
        def failure(q):
            try: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
            except Exception as error: return [type(error).__name__, str(error).splitlines()[0]]
        events()
        ours = failure(q[..., :4]); rows = events()
        torch._C._dispatch_tls_set_dispatch_key_excluded(torch._C.DispatchKey.BackendSelect, True)
        plain = failure(q[..., :4])
        torch._C._dispatch_tls_set_dispatch_key_excluded(torch._C.DispatchKey.BackendSelect, False)
        sdpa(q, k, v)
        print(json.dumps([ours, plain, rows, len(events("leave"))]))
    """)
    assert first == second
    assert first is not None
    assert [row["event"] for row in rows] == ["enter", "skip"]
    assert rows[1]["reason"] == 10
    assert after == 1  # the depth was restored
