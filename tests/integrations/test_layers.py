"""Layer identity: the parameter that made a call's query, by walking its history, and the labels of layers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "integrations" / "torch" / "python"))
from foreshock_torch.names import (  # noqa: E402
    Named,
    layer_labels,
    naming_order,
    numbered_labels,
    plain_name,
    with_number,
)

pytestmark = pytest.mark.quick

MODEL = """
from torch import nn
from torch.utils.checkpoint import checkpoint
class Block(nn.Module):
    def __init__(self, d, h, fused=True, norm=False, rope=False, lora=False, bias=True):
        super().__init__()
        self.h, self.fused, self.norm, self.rope, self.lora = h, fused, norm, rope, lora
        self.ln = nn.LayerNorm(d)
        if fused: self.qkv = nn.Linear(d, 3 * d, bias=bias)
        else: self.q, self.k, self.v = [nn.Linear(d, d, bias=bias) for _ in range(3)]
        if norm: self.qn, self.kn = nn.RMSNorm(d // h), nn.RMSNorm(d // h)
        if lora: self.la, self.lb = nn.Linear(d, 4, bias=False), nn.Linear(4, d, bias=False)
        self.o = nn.Linear(d, d)
    def forward(self, x):
        y = self.ln(x); B, N, D = y.shape
        q, k, v = self.qkv(y).split(D, 2) if self.fused else (self.q(y), self.k(y), self.v(y))
        if self.lora: q = q + 2.0 * self.lb(self.la(y))
        q, k, v = [t.view(B, N, self.h, D // self.h).transpose(1, 2) for t in (q, k, v)]
        if self.norm: q, k = self.qn(q), self.kn(k)
        if self.rope:
            c = torch.ones(N, D // self.h)
            half = lambda t: torch.cat((-t[..., 1::2], t[..., ::2]), -1)
            q, k = [(t * c + half(t) * c).to(v.dtype) for t in (q, k)]
        return x + self.o(sdpa(q, k, v, is_causal=True).transpose(1, 2).reshape(B, N, D))
def run(forward, blocks, autocast):
    names = {p._cdata: f"{i}.{n}" for i, b in enumerate(blocks) for n, p in b.named_parameters()}
    events()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast): y = forward(torch.randn(2, 16, 64))
    y.float().square().mean().backward()
    rows = events("leave")
    return [[names.get(r["layer"], r["layer"]) for r in rows if r["pass"] == p] for p in (0, 1)]
def chain(blocks, call=lambda b, x: b(x)):
    def forward(x):
        for b in blocks: x = call(b, x)
        return x
    return forward
"""


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("options", "owner"),
    [
        ("fused=True", "qkv.weight"),
        ("fused=True, bias=False", "qkv.weight"),
        ("fused=False", "q.weight"),
        ("fused=False, norm=True, rope=True", "q.weight"),
        ("fused=False, lora=True", "q.weight"),
        ("fused=False, lora=True, bias=False", "q.weight"),
    ],
)
def test_query_names_its_layer(trainer, options: str, owner: str, autocast: bool) -> None:
    forward, backward = trainer(f"""{MODEL}
blocks = [Block(64, 4, {options}) for _ in range(3)]
print(json.dumps(run(chain(blocks), blocks, {autocast})))
""")
    assert forward == [f"{i}.{owner}" for i in range(3)]
    assert backward == forward[::-1]


def test_recomputation_and_accumulation(trainer) -> None:
    seen = trainer(f"""{MODEL}
blocks = [Block(64, 4) for _ in range(2)]
plain = run(chain(blocks, lambda b, x: checkpoint(b, x, use_reentrant=False)), blocks, True)
def reentrant(x):
    x = x.requires_grad_()
    return chain(blocks, lambda b, x: checkpoint(b, x, use_reentrant=True))(x)
old = run(reentrant, blocks, True)
print(json.dumps([plain, old]))
""")
    order = ["0.qkv.weight", "1.qkv.weight"]
    assert seen[0] == [order + order[::-1], order[::-1]]
    assert seen[1] == [[0, 0, *order[::-1]], order[::-1]]  # without gradients nothing is known


def test_frozen_weights_are_unknown_not_the_layer_before(trainer) -> None:
    frozen, adapted, compiled = trainer(f"""{MODEL}
def freeze(blocks, *names):
    for b in blocks:
        for name in names: getattr(b, name).requires_grad_(False)
    return blocks
frozen = freeze([Block(64, 4, fused=False) for _ in range(3)], "q", "k")
adapted = freeze([Block(64, 4, fused=False, lora=True) for _ in range(3)], "q", "k", "v")
blocks = [Block(64, 4) for _ in range(2)]
one = torch.compile(chain(blocks))
print(json.dumps([run(chain(frozen), frozen, True), run(chain(adapted), adapted, True), run(one, blocks, False)]))
""")
    assert frozen == [[0, 0, 0], [0, 0, 0]]
    beside = [f"{n}.lb.weight" for n in range(3)]  # the branch beside the frozen projection
    assert adapted == [beside, beside[::-1]]
    assert compiled == [[0, 0], [0, 0]]


@pytest.mark.parametrize("recompute", ["None", "False", "True"])
def test_adapters_beside_a_frozen_base_name_every_layer(trainer, recompute: str) -> None:
    """As PEFT trains: nothing but the adapters needs gradients, so the first layer's base is not in the history."""
    forward, backward = trainer(f"""{MODEL}
blocks = [Block(64, 4, fused=False, lora=True, rope=True) for _ in range(3)]
for b in blocks:
    for n, p in b.named_parameters(): p.requires_grad_(n in ("la.weight", "lb.weight"))
def call(b, x):
    return b(x) if {recompute} is None else checkpoint(b, x.requires_grad_(), use_reentrant={recompute})
print(json.dumps(run(chain(blocks, call), blocks, True)))
""")
    names = [f"{n}.lb.weight" for n in range(3)]
    assert backward == names[::-1]
    assert set(forward) - {0} == set(names)
    assert recompute == "True" or 0 not in forward


def test_a_branch_beside_a_frozen_base_counts_only_if_it_has_the_same_input(trainer) -> None:
    rows, adapter = trainer("""
        from torch import nn
        before, base, low, high = [nn.Linear(32, 32, bias=False) for _ in range(4)]
        base.requires_grad_(False)
        class Quantised(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w): ctx.save_for_backward(w); return x @ w.T
            @staticmethod
            def backward(ctx, g): return g @ ctx.saved_tensors[0], None
        heads = lambda t: t.view(2, 16, 4, 8).transpose(1, 2)
        x = F.silu(before(torch.randn(2, 16, 32))); k = v = heads(x).detach()
        sdpa(heads(Quantised.apply(x, base.weight) + 2 * high(low(x))), k, v)
        sdpa(heads(base(x) + 2 * high(low(F.dropout(x, 0.1)))), k, v)
        sdpa(heads(base(x) + x), k, v)
        sdpa(heads(base(x) + high(torch.randn(2, 16, 32))), k, v)
        print(json.dumps([[row["layer"] for row in events("leave")], high.weight._cdata]))
    """)
    assert rows == [adapter, adapter, 0, 0]


def test_walk_into_a_projection_made_elsewhere_stops(trainer) -> None:
    seen = trainer("""
        from torch import nn
        before = nn.Linear(32, 32); conv = nn.Conv1d(32, 32, 1)
        class Mine(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w): ctx.save_for_backward(x, w); return x @ w.T
            @staticmethod
            def backward(ctx, g): x, w = ctx.saved_tensors; return g @ w, None
        heads = lambda t: t.view(2, 16, 4, 8).transpose(1, 2)
        x = before(torch.randn(2, 16, 32)); k = v = heads(x).detach()
        weight = torch.randn(32, 32)
        sdpa(heads(conv(x.transpose(1, 2)).transpose(1, 2).contiguous()), k, v)
        sdpa(heads(Mine.apply(x, weight)), k, v)
        sdpa(sdpa(heads(x), k, v), k, v)
        rows = [row["layer"] for row in events("leave")]
        print(json.dumps([rows, before.weight._cdata]))
    """)
    rows, before = seen
    assert rows == [0, 0, before, 0]


def test_what_attention_is_computed_from_is_named_before_the_many_experts() -> None:
    experts = ["h.0.experts.7.w1.weight", "h.0.moe.linear_fc1.weight17", "layers.0.blocks.3.mlp.experts.2.up.weight"]
    queries = ["h.59.attn.c_attn.weight", "layers.2.blocks.3.attn.qkv.weight", "h.59.attn.q_b_proj.weight"]
    heads = ["h.59.attn.heads.5.query.weight", "encoder.layers.3.self_attn.in_proj_weight"]
    for first in queries + heads:
        assert all(naming_order(first, True) < naming_order(expert, True) for expert in experts), first
        assert naming_order(experts[0], True) < naming_order(first, False), "frozen, no call has it"


def test_labels() -> None:
    gpt = ["wte.weight", "blocks.3.attn.qkv.weight", "blocks.10.mlp.0.weight"]
    assert layer_labels(gpt, [*gpt, "blocks.3.ln.bias", "head.norm.bias"]) == {
        "wte.weight": "wte",
        "blocks.3.attn.qkv.weight": "003",
        "blocks.10.mlp.0.weight": "010",
        "blocks.3.ln.bias": "003",
        "head.norm.bias": "head.norm",
    }
    towers = ["encoder.layers.3.q.weight", "decoder.layers.3.q.weight"]
    assert list(layer_labels(towers, towers).values()) == ["encoder.003", "decoder.003"]
    deep = ["a.x.layers.0.w", "a.y.layers.0.w", "b.x.layers.0.w"]
    assert list(layer_labels(deep, deep).values()) == ["a.x.000", "a.y.000", "b.000"]
    assert layer_labels(["0.q.weight"], ["0.q.weight"]) == {"0.q.weight": "000"}
    long = ["m" * 40 + ".weight"]
    assert layer_labels(long, long) == {long[0]: "m" * 31}


def test_blocks_within_stages_have_labels_of_their_own() -> None:
    swin = [f"layers.{stage}.blocks.{block}.{leaf}.weight" for stage, block in ((0, 0), (0, 1), (1, 5))
            for leaf in ("attn.qkv", "mlp.fc1")]  # fmt: skip
    swin += ["layers.0.downsample.reduction.weight"]
    assert layer_labels(swin, [*swin, "layers.0.blocks.1.norm1.bias"]) == {
        **{name: f"{int(name[7]):03d}.{int(name[16]):03d}" for name in swin[:-1]},
        "layers.0.downsample.reduction.weight": "000",
        "layers.0.blocks.1.norm1.bias": "000.001",
    }
    paths = ["down_blocks.1.attentions.0", "mid_block.attentions.0", "up_blocks.2.attentions.1"]
    unet = [f"{path}.transformer_blocks.0.{leaf}.weight" for path in paths for leaf in ("attn1.to_q", "ff.net.0.proj")]
    labels = {"down_blocks.001.000.000", "mid_block.000.000", "up_blocks.002.001.000"}
    assert set(layer_labels(unet, unet).values()) == labels
    nested = ["1.0.attn.in_proj_weight", "1.0.mlp.weight", "1.1.attn.in_proj_weight", "1.1.mlp.weight", "2.weight"]
    assert list(layer_labels(nested, nested).values()) == ["001.000", "001.000", "001.001", "001.001", "002"]


def test_layers_with_the_same_numbers_have_their_paths_as_labels() -> None:
    names = [f"layers.0.{block}.{leaf}.weight" for block in ("3", "blocks.3", "blocks.4") for leaf in ("attn.q", "mlp")]
    labels = layer_labels(names, [*names, "layers.0.3.norm.bias"])
    assert labels == {
        **{name: name.rpartition(".3.")[0] + ".3" for name in names if ".3." in name},
        **{name: "000.004" for name in names if ".4." in name},
        "layers.0.3.norm.bias": "layers.0.3",
    }


@pytest.mark.parametrize(
    "leaves",
    [
        ["attn.heads.0.query", "attn.heads.1.query", "attn.heads.0.key", "mlp.fc"],  # a list of heads
        ["attn.q_proj", "mlp.experts.0.up.proj", "mlp.experts.1.up.proj", "mlp.experts.1.down"],
        ["0.fn.to_q", "0.fn.to_out.0", "1.fn.net.0"],  # attention and what follows it as two numbered modules
        ["attn.q", "attn.adapters.0.q.down", "attn.adapters.0.q.up", "mlp.fc"],
    ],
)
def test_numbers_within_a_layer_are_no_layers(leaves: list[str]) -> None:
    names = [f"blocks.{n}.{leaf}.weight" for n in (2, 10) for leaf in leaves]
    assert set(layer_labels(names, names).values()) == {"002", "010"}


def test_all_heads_of_a_further_attention_have_its_name() -> None:
    names = [f"blocks.0.{leaf}.weight" for leaf in ("attn.q", "cross.heads.0.q", "cross.heads.1.q", "mlp.fc")]
    assert list(layer_labels(names, names).values()) == ["000", "000.cross", "000.cross", "000"]


def test_labels_of_unlike_attention_are_distinct() -> None:
    attention = ["self_attn.in_proj_weight", "multihead_attn.in_proj_weight"]
    paths = [f"{n}.{path}" for n in (0, 1) for path in
             ("encoder.layers.0", "decoder.layers.0", "decoder.layers.1")]  # fmt: skip
    names = [f"blocks.{path}.{leaf}" for path in paths
             for leaf in (*(attention if "decoder" in path else attention[:1]), "linear1.weight")]  # fmt: skip
    labels = layer_labels(names, [*names, "blocks.0.decoder.norm.weight"])
    assert labels == {
        **{name: f"00{name[7]}.{name[9:16]}.00{name[24]}" + (".multihead_attn" if "multihead" in name else "")
           for name in names},
        "blocks.0.decoder.norm.weight": "000",
    }  # fmt: skip
    t5 = [f"{stack}.block.0.layer.{n}.{leaf}.weight" for stack, n, leaf in (
        ("encoder", 0, "SelfAttention.q"), ("encoder", 1, "DenseReluDense.wi"), ("decoder", 0, "SelfAttention.q"),
        ("decoder", 1, "EncDecAttention.q"), ("decoder", 2, "DenseReluDense.wi"))]  # fmt: skip
    assert list(layer_labels(t5, t5).values()) == [
        "encoder.000", "encoder.000", "decoder.000", "decoder.000.EncDecAttention", "decoder.000"
    ]  # fmt: skip
    resnets = ["mid_block.attentions.0.attn.to_q.weight", "mid_block.resnets.0.emb.weight", "up.0.attn.to_q.weight"]
    assert list(layer_labels(resnets, resnets).values()) == [
        "mid_block.attentions.000",
        "mid_block.resnets.000",
        "up.000",
    ]


def test_adapters_of_a_projection_are_its_layer() -> None:
    lora = [f"layers.{stage}.blocks.{block}.attn.q_proj.{leaf}.weight" for stage, block in ((0, 0), (0, 1))
            for leaf in ("base_layer", "lora_A.default", "lora_B.default")]  # fmt: skip
    names = [*lora, *[f"layers.0.blocks.{block}.mlp.fc.weight" for block in (0, 1)]]
    assert set(layer_labels(names, names).values()) == {"000.000", "000.001"}


def test_a_projection_in_a_wrapper_names_its_block() -> None:
    """As LinearNorm in LeViT of timm."""
    names = [f"stages.{stage}.blocks.{block}.{leaf}.linear.weight" for stage in (0, 1) for block in (0, 1)
             for leaf in ("attn.qkv", "attn.proj.ln", "mlp.ln1")]  # fmt: skip
    assert set(layer_labels(names, names).values()) == {"000.000", "000.001", "001.000", "001.001"}


def test_numbers_of_the_framework_win_over_paths() -> None:
    """Megatron's layer_number counts over all pipeline stages; a path starts again on each."""
    gpt = {f"decoder.layers.{n}": n + 13 for n in range(2)} | {"decoder.layers.0.self_attention": 13}
    rows = [with_number(name, gpt) for name in ("decoder.layers.0.self_attention.qkv.weight",
                                                "decoder.layers.1.mlp.bias", "output_layer.weight")]  # fmt: skip
    assert [(row.layer, row.number) for row in rows] == [("decoder.layers.0", 13), ("decoder.layers.1", 14), ("", None)]
    assert numbered_labels(rows) == {rows[0].name: "013", rows[1].name: "014"}
    # Two chunks of a stage (virtual pipeline) use the same paths for different layers.
    chunks = [Named(f"GPT_{n}.decoder.layers.0.w", "decoder.layers.0", 3 + 8 * n, f"GPT_{n}") for n in range(2)]
    assert numbered_labels(chunks) == {"GPT_0.decoder.layers.0.w": "003", "GPT_1.decoder.layers.0.w": "011"}
    towers = [Named(f"{t}.layers.0.w", f"{t}.layers.0", 1) for t in ("encoder", "decoder")]
    assert list(numbered_labels(towers).values()) == ["encoder.001", "decoder.001"]
    # One number on two layers of a stack says nothing.
    doubtful = [Named(f"layers.{n}.w", f"layers.{n}", 1) for n in range(2)]
    assert numbered_labels(doubtful) == {}


def test_layer_numbers_of_modules_name_their_calls(trainer) -> None:
    rows, identities = trainer(f"""{MODEL}
blocks = nn.ModuleList([Block(64, 4) for _ in range(2)]); opt = torch.optim.AdamW(blocks.parameters())
for n, block in enumerate(blocks): block.layer_number = n + 25
class Stage(nn.Module):
    def __init__(self): super().__init__(); self.layers = blocks; self.layers_seen = 2
stage = Stage(); events()
chain(blocks)(torch.randn(2, 16, 64)).square().mean().backward(); opt.step()
print(json.dumps([events("name"), [b.qkv.weight._cdata for b in blocks]]))
""")
    labels = {row["identity"]: row["layer"] for row in rows}
    assert [labels[identity] for identity in identities] == ["025", "026"]
    assert set(labels.values()) == {"025", "026"}


def test_wrappers_leave_names() -> None:
    assert plain_name("module._orig_mod.blocks.0._checkpoint_wrapped_module.q.weight") == "blocks.0.q.weight"
    assert plain_name("_fsdp_wrapped_module.blocks.0.module.q.weight") == "blocks.0.module.q.weight"
    assert plain_name("_orig_mod.module.wte.weight") == "wte.weight"
