"""Stand-ins of Transformer Engine's Python functions: the parameters of a release, computed on the host in fp64.

write(FOLDER, RELEASE) makes a package transformer_engine, whose module attention.py takes the two functions by
`from ... import`, as the real one does.
"""

from __future__ import annotations

from pathlib import Path

# The parameters of both functions by release, as the Python files of those releases name and order them. Releases in
# between have those of the one before.
_AHEAD = "is_training, max_seqlen_q, max_seqlen_kv, cu_seqlens_q, cu_seqlens_kv, q, k, v, fake_dtype, fused_attention_backend, attn_bias=None, cu_seqlens_q_padded=None, cu_seqlens_kv_padded=None, {pages}s_quantizer=None, o_quantizer=None, attn_scale=None, dropout=0.0, fast_zero_fill=True, qkv_layout='sbh3d', {formats}attn_bias_type='no_bias', attn_mask_type='padding', {softmax}window_size=(-1, -1), {corner}rng_gen=None{more}"  # noqa: E501
_BACK = "max_seqlen_q, max_seqlen_kv, cu_seqlens_q, cu_seqlens_kv, q, k, v, o, d_o, fake_dtype, {dtype}aux_ctx_tensors, fused_attention_backend, cu_seqlens_q_padded=None, cu_seqlens_kv_padded=None, s_quantizer=None, dp_quantizer=None, dqkv_quantizer=None, attn_scale=None, dropout=0.0, fast_zero_fill=True, qkv_layout='sbh3d', {formats}attn_bias_type='no_bias', attn_mask_type='padding', {softmax}window_size=(-1, -1), {corner}deterministic=False{more}"  # noqa: E501
_PAGES, _SOFTMAX = "page_table_k=None, page_table_v=None, ", "softmax_type='vanilla', "
_CORNER, _DTYPE = "bottom_right_diagonal=None, ", "dqkv_dtype, "
_BEFORE_2_8 = {"formats": "", "softmax": "", "corner": "", "dtype": _DTYPE, "more": ""}
_FROM_2_12 = {"softmax": _SOFTMAX, "corner": _CORNER, "pages": _PAGES}
_LATE = ", softmax_offset=None, return_max_logit=False, cuda_graph=False"
PARAMETERS = {
    "2.1.0": (_AHEAD.format(**_BEFORE_2_8, pages=""), _BACK.format(**_BEFORE_2_8)),
    "2.8.0": (
        _AHEAD.format(pages=_PAGES, formats="", softmax=_SOFTMAX, corner="", more=", softmax_offset=None"),
        _BACK.format(**_BEFORE_2_8 | {"softmax": _SOFTMAX}),
    ),
    "2.14.1": (
        _AHEAD.format(**_FROM_2_12, formats="", more=_LATE),
        _BACK.format(**_FROM_2_12, formats="", dtype=_DTYPE, more=", cuda_graph=False"),
    ),
    "2.20.2": (
        _AHEAD.format(**_FROM_2_12, formats="o_format='sbhd', qkv_scale_inv_format=None, ", more=_LATE),
        _BACK.format(
            **_FROM_2_12, dtype="", more=", cuda_graph=False",
            formats="o_format='sbhd', do_format='sbhd', dqkv_layout='sbh3d', qkv_scale_inv_format=None, "
            "do_scale_inv_format=None, ",
        ),
    ),
}  # fmt: skip

_FUNCTIONS = '''
import engine_package as _package

def fused_attn_fwd({ahead}):
    """The forward pass."""
    return _package.ahead(locals())

def fused_attn_bwd({back}):
    return _package.back(locals())
'''
_USER = "from .cpp_extensions.fused_attn import fused_attn_bwd, fused_attn_fwd\n"


def write(folder: Path, release: str, **parameters: str) -> None:
    """`ahead`, `back`: other parameters than those of the release."""
    package = folder / "transformer_engine" / "pytorch" / "cpp_extensions"
    package.mkdir(parents=True)
    ahead, back = PARAMETERS[release]
    text = _FUNCTIONS.format(**{"ahead": ahead, "back": back} | parameters)
    (package / "fused_attn.py").write_text(text)
    (package.parent / "attention.py").write_text(_USER)
    (package / "__init__.py").write_text("from .fused_attn import *\n")
    for parent in (package.parent, package.parent.parent):
        (parent / "__init__.py").write_text(f"__version__ = {release!r}\n")


def formats(layout: str) -> tuple[str, str]:
    parts = layout.replace("3", "").replace("2", "").split("_")
    return parts[0], parts[-1]


def _parts(given: dict) -> tuple:
    """Query, key and value as (batch, position, head, d) in fp64, scale, whether the mask is causal, no offsets of
    packed sequences, and the window."""
    import torch

    scale = given["attn_scale"] if given["attn_scale"] is not None else given["q"].shape[-1] ** -0.5
    of_query, of_key = formats(given["qkv_layout"])
    tensors = [
        torch.as_tensor(given[name]).permute(*(have.index(axis) for axis in "bshd")).double()
        for name, have in (("q", of_query), ("k", of_key), ("v", of_key))
    ]
    return *tensors, scale, given["attn_mask_type"].startswith("causal"), None, None, *(given["window_size"])


def _as(tensor, layout: str, like):  # noqa: ANN001, ANN202
    return tensor.to(like.dtype).permute(*("bshd".index(axis) for axis in layout)).contiguous()


def ahead(given: dict) -> tuple:
    """The result of fused_attn_fwd(): output and [log-sum-exp, state of the random numbers]."""
    import torch
    from attention_packages import forward

    if "t" in given["qkv_layout"]:
        return torch.zeros_like(given["q"]), [torch.zeros(1), torch.zeros(2)]
    out, lse = forward(*_parts(given))
    out = _as(out, given.get("o_format", formats(given["qkv_layout"])[0]), given["q"]) * ERROR["out"]
    return out, [lse[..., None], torch.zeros(2, dtype=torch.int64)]


def back(given: dict) -> list:
    from attention_packages import backward

    layout = formats(given["qkv_layout"])[0]
    d_o = given["d_o"].permute(*(given.get("do_format", layout).index(axis) for axis in "bshd")).double()
    grads = backward(d_o, *_parts(given))
    LAST[:] = [g.permute(0, 2, 1, 3) for g in grads[1:]]
    of_query, of_key = formats(given.get("dqkv_layout", given["qkv_layout"]))
    grads = [_as(g, f, given["q"]) for g, f in zip(grads, (of_query, of_key, of_key), strict=True)]
    return [grads[0] * ERROR["grad_query"], *grads[1:], None]


LAST: list = []  # gradients of key and value of the last call: (batch, head, position, d)
ERROR = {"out": 1.0, "grad_query": 1.0}  # factors of planted errors
