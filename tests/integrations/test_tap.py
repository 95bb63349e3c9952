"""foreshock.tap(): seen in eager and compiled code, without a trace in the training; what is not tapped is named."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from torch_version import TORCH

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / "integrations" / "torch" / "python"

TAPPED = """
import foreshock, math
def fingerprint(t):
    flat = t.detach().double().expand(*t.shape).reshape(-1)
    return (flat * torch.arange(1, flat.numel() + 1, dtype=torch.double)).sum().item()
def own_attention(q, k, v):
    scores = (q @ k.transpose(-1, -2)) * 0.25
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp() @ v, lse
"""


def test_what_is_shown_is_what_is_described(trainer) -> None:
    rows, truth, layer = trainer(f"""{TAPPED}
projection = torch.nn.Linear(32, 32)
q = projection(torch.randn(2, 16, 32)).view(2, 16, 4, 8).transpose(1, 2)
k, v = torch.randn(2, 2, 4, 24, 8).unbind(0); mask = torch.ones(16, 24, dtype=torch.bool)
out, lse = own_attention(q, k, v)
foreshock.tap(q, k, v, out, lse, layer=7, scale=0.25)
foreshock.tap(q, k, v, out, causal="bottom_right", mask=mask, layer="mine")
foreshock.tap(*[t.transpose(1, 2) for t in (q, k, v, out)], layout="bnhd")
foreshock.tap(q, k, v, out, lse, scale=0.25, grad_out=out, grad_query=q)
foreshock.tap(q, k, v, out, soft_cap=30, dropout=0.5, kept=mask)
foreshock.tap(q, k, v, out, lse, grad_out=out, grad_query=q, soft_cap=30, dropout=0.5, kept=mask)
truth = [fingerprint(t) for t in (q, k, v, out)]
print(json.dumps([events(), truth + [fingerprint(lse)], projection.weight._cdata]))
""")
    calls = [row for row in rows if row["event"] in ("enter", "leave", "skip")]
    assert [row["event"] for row in calls] == ["enter", "leave"] * 6
    assert [row["op"].removeprefix("foreshock::") for row in calls[::2]] == [
        "tap", "tap", "tap", "tap_backward", "tap", "tap_backward",
    ]  # fmt: skip
    assert calls[0]["flags"] == 1
    first, second, third, backward, *dropped = calls[1::2]
    assert [(row["soft_cap"], row["dropout"], row["kept"]["shape"]) for row in dropped] == [
        (30, 0.5, [2, 4, 16, 24])
    ] * 2
    for row in (first, second, third, backward):
        found = [row[name]["fingerprint"] for name in ("query", "key", "value", "out")]
        # The same fp64 numbers in another order: 5e4 terms, 2^-53 each, times their growth.
        assert all(abs(a - b) <= 1e-9 * (1 + abs(b)) for a, b in zip(found, truth[:4], strict=True))
        assert row["layer"] == layer
    assert abs(first["lse"]["fingerprint"] - truth[4]) <= 1e-9 * (1 + abs(truth[4]))
    assert (first["layer_name"], first["scale"], first["causal"]) == ("007", 0.25, 0)
    assert (second["layer_name"], second["causal"], second["mask"]["shape"]) == ("mine", 2, [2, 4, 16, 24])
    assert abs(second["scale"] - 8**-0.5) < 1e-15
    assert "layer_name" not in third
    assert backward["grad_query"]["fingerprint"] == backward["query"]["fingerprint"]


def test_it_never_harms(trainer) -> None:
    """Wrong words are told at the first call, monitored or not; everything else passes without a word."""
    rows, errors = trainer(f"""{TAPPED}
q = torch.randn(2, 4, 16, 8); errors = []
for more in (dict(causal="left"), dict(layout="bqkd"), dict(causal=None)):
    try: foreshock.tap(q, q, q, q, **more)
    except ValueError as error: errors.append(str(error))
events()
foreshock.tap(None, q, q, q); foreshock.tap(q, q, q, "out"); foreshock.tap(q, q, q, q, layer=[1])
torch.vmap(lambda t: foreshock.tap(t, t, t, t) or t)(torch.stack([q, q]))
foreshock.tap(*[q.to("meta")] * 4); foreshock.tap(*[q[..., :0]] * 4); foreshock.tap(*[q[0]] * 4)
with torch.inference_mode(): foreshock.tap(q, q, q, q)
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode(): foreshock.tap(*[torch.randn(2, 4, 16, 8)] * 4)
print(json.dumps([[r for r in events() if r["event"] in ("leave", "skip", "off")], errors]))
""")
    assert len(errors) == 3
    assert [row["event"] for row in rows].count("leave") >= 1
    assert not [row for row in rows if row["event"] == "off"]


COMPILED = """
import foreshock, hashlib, os
torch.manual_seed(0); torch.set_num_threads(1)
from torch._dynamo.utils import counters
from torch import nn
class Mine(torch.autograd.Function):
    # A kernel of one's own, out of the compiler's sight below its operation.
    @staticmethod
    def forward(ctx, q, k, v):
        out, lse = torch.ops.mine.attend(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse); return out, lse
    @staticmethod
    def backward(ctx, g, _): return tuple(torch.ops.mine.back(g, *ctx.saved_tensors))
@torch.library.custom_op("mine::attend", mutates_args=())
def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    s = (q @ k.transpose(-1, -2)) * 0.25; lse = s.logsumexp(-1)
    return (s - lse[..., None]).exp() @ v, lse
attend.register_fake(lambda q, k, v: (torch.empty_like(q), q.new_empty(q.shape[:-1])))
@torch.library.custom_op("mine::back", mutates_args=())
def back(g: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
         ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p = ((q @ k.transpose(-1, -2)) * 0.25 - lse[..., None]).exp()
    d = p * (g @ v.transpose(-1, -2) - (g * out).sum(-1, True))
    return (d @ k * 0.25).clone(), (d.transpose(-1, -2) @ q * 0.25).clone(), (p.transpose(-1, -2) @ g).clone()
back.register_fake(lambda g, q, k, v, out, lse: (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)))
class Block(nn.Module):
    def __init__(self, number):
        super().__init__(); self.number, self.qkv, self.o = number, nn.Linear(32, 96), nn.Linear(32, 32)
    def forward(self, x):
        q, k, v = [t.view(2, 16, 4, 8).transpose(1, 2).contiguous() for t in self.qkv(x).split(32, 2)]
        out, lse = Mine.apply(q, k, v)
        if TAP: foreshock.tap(q, k, v, out, lse=lse, scale=0.25, layer=self.number)
        return x + self.o(out.transpose(1, 2).reshape(2, 16, 32)).relu()
model = nn.Sequential(*[Block(n) for n in range(2)]); opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
run = torch.compile(model, fullgraph=True); total = hashlib.sha256()
for _ in range(3):
    opt.zero_grad(); loss = run(torch.randn(2, 16, 32)).square().mean(); loss.backward(); opt.step()
    total.update(loss.detach().numpy().tobytes())
for p in model.parameters(): total.update(p.detach().numpy().tobytes())
facts = dict(digest=total.hexdigest(), breaks=sum(counters["graph_break"].values()),
             cache=[counters["inductor"]["fxgraph_cache_" + what] for what in ("hit", "miss", "bypass")])
"""


@pytest.mark.long
def test_it_survives_compile_and_changes_nothing(trainer, tmp_path) -> None:
    """The same bits with the line and without it, with the monitor and without it; what one of them compiled serves the
    other; no graph break, and the calls are seen out of cached graphs too."""
    plain = "import torch, json\n"
    path = {"PYTHONPATH": str(PYTHON)}
    tell = "print(json.dumps(facts))"
    untapped = trainer(plain + "TAP = False" + COMPILED + tell, monitored=False, **path)
    alone = trainer(plain + "TAP = True" + COMPILED + tell, monitored=False, **path)
    facts, rows = trainer("TAP = True" + COMPILED + "print(json.dumps([facts, events()]))")
    assert untapped["digest"] == alone["digest"] == facts["digest"]
    assert alone["breaks"] == facts["breaks"] == 0
    assert untapped["cache"][1] > 0
    assert facts["cache"] == [sum(untapped["cache"]), 0, 0]
    seen = [row for row in rows if row["event"] == "leave" and row["op"] == "foreshock::tap"]
    if TORCH == (2, 6):
        pytest.skip("torch 2.6 drops taps from compiled graphs; their bits and caches were as they should be")
    assert [row["layer_name"] for row in seen] == ["000", "001"] * 3
    assert all(row["lse"] is not None for row in seen)


@pytest.mark.parametrize("order", ["import foreshock, torch", "import torch, foreshock", "import foreshock"])
def test_without_a_run_around_it_nothing_happens(order) -> None:
    code = f"""
import sys
{order}
foreshock.report(step=1)
if "torch" in sys.modules:
    q = torch.randn(1, 2, 4, 8)
    foreshock.tap(q, q, q, q)
    torch.compile(lambda t: foreshock.tap(t, t, t, t) or t * 2, backend="eager", fullgraph=True)(q)
print([] if "torch" in sys.modules else [name for name in ("foreshock_torch.clock", "ctypes") if name in sys.modules])
"""
    env = {"PYTHONPATH": str(PYTHON), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True, env=env
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


def test_flex_attention_is_named_unless_it_is_tapped(trainer) -> None:
    code = """
import foreshock, os, types
from torch.nn.attention.flex_attention import flex_attention
lin = torch.nn.Linear(8, 8); opt = torch.optim.AdamW(lin.parameters())
sys.modules["transformer_engine"] = types.SimpleNamespace(__version__="1.13.0")
compiled = torch.compile(flex_attention, backend="eager")
for n in range(3):
    q = torch.randn(1, 2, 128, 32)
    if n == 1 and os.environ["USE"] != "import": out = compiled(q, q, q)
    if n == 1 and os.environ["USE"] == "tap": foreshock.tap(q, q, q, out)
    lin(torch.randn(4, 8)).sum().backward(); opt.step(); opt.zero_grad()
print(json.dumps(events("unseen")))
"""
    named = {
        use: [(row["name"], row["evidence"]) for row in trainer(code, USE=use)] for use in ("use", "tap", "import")
    }
    old = ("transformer_engine before 2.0", 2)
    assert named == {"use": [("flex_attention", 1), old], "tap": [], "import": [old]}
