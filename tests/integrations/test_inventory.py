"""The inventory of attention: which modules of a model are attention, by the names and shapes of their parameters."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "integrations" / "torch" / "python"))
from foreshock_torch.inventory import ATTENTION, OTHER, mixers_of  # noqa: E402
from foreshock_torch.modules import parameters_below  # noqa: E402
from foreshock_torch.names import layer_labels  # noqa: E402

pytestmark = pytest.mark.quick

W = 8  # width of the models


def module(class_name: str, **children: object) -> nn.Module:
    """A module of a new class. A child is a module, a parameter, or the shape of a Linear layer (outputs, inputs)."""
    made = type(class_name, (nn.Module,), {})()
    for name, child in children.items():
        if isinstance(child, tuple):
            child = nn.Linear(child[1], child[0])
        setattr(made, name, child)
    return made


def model(*blocks: nn.Module) -> nn.Module:
    return module("Model", embed=nn.Embedding(16, W), layers=nn.ModuleList(blocks), head=(16, W))


def block(attribute: str, mixer: nn.Module, **others: object) -> nn.Module:
    mlp = nn.Sequential(nn.Linear(W, 4 * W), nn.GELU(), nn.Linear(4 * W, W))
    return module("Block", norm=nn.LayerNorm(W), **{attribute: mixer}, mlp=mlp, **others)


def found(root: nn.Module) -> list[tuple[str | None, int]]:
    """(label, kind) of each mixer."""
    names = {p._cdata: name for name, p in parameters_below(root)}
    matrices = [name for name, p in parameters_below(root) if p.dim() >= 2]
    labels = layer_labels(matrices, list(names.values()))
    return [(mixer.layer, mixer.kind) for mixer in mixers_of([root], lambda p: labels.get(names[p._cdata]))]


def llama():
    return module("LlamaAttention", q_proj=(W, W), k_proj=(W // 2, W), v_proj=(W // 2, W), o_proj=(W, W))


class Conv1D(nn.Module):  # the layer of GPT-2: its weight is transposed
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(W, outputs))


def lora(shape: tuple[int, int]) -> nn.Module:
    return module(
        "LoraLinear",
        base_layer=shape,
        lora_A=nn.ModuleDict({"default": nn.Linear(shape[1], 2, bias=False)}),
        lora_B=nn.ModuleDict({"default": nn.Linear(2, shape[0], bias=False)}),
    )


SQUARE = (W, W)
ATTENTIONS = {
    "Llama": ("self_attn", llama()),
    "GPT-2": ("attn", module("GPT2Attention", c_attn=Conv1D(3 * W), c_proj=Conv1D(W))),
    "BERT": (
        "attention",
        module(
            "BertAttention",
            self=module("BertSelfAttention", query=SQUARE, key=SQUARE, value=SQUARE),
            output=module("BertSelfOutput", dense=SQUARE, LayerNorm=nn.LayerNorm(W)),
        ),
    ),
    "ViT of timm": ("attn", module("Attention", qkv=(3 * W, W), proj=SQUARE)),
    "T5": ("SelfAttention", module("T5Attention", q=SQUARE, k=SQUARE, v=SQUARE, o=SQUARE)),
    "DeepSeek-V3": (
        "self_attn",
        module(
            "DeepseekV3Attention", q_a_proj=(4, W), q_b_proj=(2 * W, 4), kv_a_proj_with_mqa=(6, W), kv_b_proj=(W, 4),
            o_proj=SQUARE,
        ),
    ),
    "nn.MultiheadAttention": ("self_attn", nn.MultiheadAttention(W, 2)),
    "nn.MultiheadAttention of other widths": ("self_attn", nn.MultiheadAttention(W, 2, kdim=4, vdim=4)),
    "Megatron-LM": ("self_attention", module("SelfAttention", linear_qkv=(3 * W, W), linear_proj=SQUARE)),
    "GPT-NeoX": ("attention", module("GPTNeoXAttention", query_key_value=(3 * W, W), dense=SQUARE)),
    "MPT": ("attn", module("MptAttention", Wqkv=(3 * W, W), out_proj=SQUARE)),
    "diffusers": ("attn1", module("Attention", to_q=SQUARE, to_k=SQUARE, to_v=SQUARE)),
    "XLNet": ("rel_attn", module("A", **{name: nn.Parameter(torch.zeros(W, 2, 4)) for name in "qkvor"})),
    "the attention of 2017": ("slf_attn", module("MultiHead", w_qs=SQUARE, w_ks=SQUARE, w_vs=SQUARE, fc=SQUARE)),
    "LoRA": ("self_attn", module("A", q_proj=lora(SQUARE), k_proj=SQUARE, v_proj=SQUARE, o_proj=SQUARE)),
    "a fused matrix of another name": ("attention", module("Mix", inside=(3 * W, W), outside=SQUARE)),
    "four matrices of other names": ("mix", module("HandAttention", a=SQUARE, b=SQUARE, c=SQUARE, d=SQUARE)),
    "a query whose keys another layer computes": ("self_attn", module("SharedKv", q_proj=SQUARE, o_proj=SQUARE)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_attention_is_found_with_the_label_of_its_layer(kind):
    attribute, attention = ATTENTIONS[kind]
    assert found(model(block("mlp_only", nn.Identity()), block(attribute, attention))) == [("001", ATTENTION)]


OTHERS = {
    "Mamba": ("mixer", module("MambaMixer", in_proj=(4 * W, W), x_proj=(6, 2 * W), dt_proj=(2 * W, 4),
                              A_log=nn.Parameter(torch.zeros(2 * W, 2)), out_proj=(W, 2 * W))),
    "RWKV": ("attention", module("RwkvSelfAttention", time_decay=nn.Parameter(torch.zeros(W)), key=SQUARE,
                                 value=SQUARE, receptance=SQUARE, output=SQUARE)),
    "GatedDeltaNet": ("linear_attn", module("GatedDeltaNet", in_proj_qkvz=(4 * W, W), in_proj_ba=(4, W),
                                            dt_bias=nn.Parameter(torch.zeros(2)), out_proj=SQUARE)),
    "KDA": ("self_attn", module("KimiDeltaAttention", q_proj=SQUARE, k_proj=SQUARE, v_proj=SQUARE,
                                A_log=nn.Parameter(torch.zeros(2)), o_proj=SQUARE)),
    "MobileViTv2": ("attn", module("LinearSelfAttention", qkv_proj=nn.Conv2d(W, 2 * W + 1, 1),
                                   out_proj=nn.Conv2d(W, W, 1))),
    "linear attention": ("attn", module("LinearAttention", q_proj=SQUARE, k_proj=SQUARE, v_proj=SQUARE)),
    "RG-LRU": ("temporal_block", module("RecurrentBlock", linear_x=SQUARE, linear_y=SQUARE, linear_out=SQUARE,
                                        rg_lru=module("RgLru", gate=nn.Parameter(torch.zeros(2, 4, 4))))),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_other_mixers_are_not_attention(kind):
    attribute, mixer = OTHERS[kind]
    hybrid = model(block(attribute, mixer), block("self_attn", llama()))
    assert found(hybrid) == [("000", OTHER), ("001", ATTENTION)]


def test_attention_and_state_space_in_one_layer():
    parallel = block("self_attn", llama(), mamba=OTHERS["Mamba"][1])
    assert sorted(kind for _, kind in found(model(parallel))) == [ATTENTION, OTHER]


def test_cross_attention_is_a_layer_of_its_own():
    decoder = block("self_attn", llama(), encoder_attn=llama())
    assert found(model(decoder)) == [("000", ATTENTION), ("000.encoder_attn", ATTENTION)]
    torchs = nn.Transformer(W, 2, 1, 1, 16)
    expected = ["encoder.000", "decoder.000", "decoder.000.multihead_attn"]
    assert found(torchs) == [(label, ATTENTION) for label in expected]


def test_the_heads_of_a_list_have_one_label():
    heads = nn.ModuleList(module("Head", key=(4, W), query=(4, W), value=(4, W)) for _ in range(2))
    assert found(model(block("sa", module("MultiHead", heads=heads, proj=SQUARE)))) == [("000", ATTENTION)] * 2


def test_the_models_of_a_game_are_all_counted():
    models = [model(block("self_attn", llama()), block("self_attn", llama())) for _ in range(2)]
    assert [mixer.kind for mixer in mixers_of(models, lambda _: None)] == [ATTENTION] * 4


def test_modules_without_attention():
    convolution = module("ChannelAttention", fc1=nn.Conv2d(W, 2, 1), fc2=nn.Conv2d(2, W, 1))
    experts = nn.ModuleList(module("Expert", w1=SQUARE, w2=SQUARE, w3=SQUARE) for _ in range(4))
    deformable = module("DeformableAttention", offsets=(2 * W, W), weights=(4, W), value_proj=SQUARE, out=SQUARE)
    feed_forward = module("RwkvFeedForward", key=(4 * W, W), value=(W, 4 * W), receptance=SQUARE)
    contrast = module("Moco", encoder_q=SQUARE, encoder_k=SQUARE)
    tcn = module("Tcn", conv1d=nn.Conv1d(W, W, 3), out=SQUARE)
    for other in (convolution, module("Moe", experts=experts), deformable, feed_forward, contrast, tcn):
        assert found(model(block("part", other))) == []


def test_lazy_modules_that_were_never_called_are_passed_over():
    lazy = module("A", q_proj=nn.LazyLinear(W), k_proj=nn.LazyLinear(W), v_proj=nn.LazyLinear(W))
    root = model(block("self_attn", lazy), block("self_attn", llama()))
    assert [mixer.name for mixer in mixers_of([root], lambda _: None)] == ["LlamaAttention"]


def test_attention_blocks_are_searched_inside():
    """A block whose name has the word attention is not attention itself."""
    inner = module("Inner", qkv=(3 * W, W), proj=SQUARE)
    assert found(model(module("AttentionBlock", fn=inner, mlp=nn.Sequential(nn.Linear(W, 3 * W))))) == [
        ("000", ATTENTION)
    ]


def test_frozen_attention_is_not_trained():
    frozen = llama().requires_grad_(False)
    tuned = module("A", q_proj=lora(SQUARE), k_proj=SQUARE, v_proj=SQUARE).requires_grad_(False)
    tuned.q_proj.lora_A.requires_grad_(True)
    mixers = mixers_of([model(block("a", frozen), block("a", tuned), block("a", llama()))], lambda _: None)
    assert [mixer.is_trained for mixer in mixers] == [False, True, True]
    assert [mixer.layer for mixer in mixers] == [None] * 3
