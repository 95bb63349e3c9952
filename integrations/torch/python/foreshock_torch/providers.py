"""Describes calls of attention functions of other packages, for seams.py. Reads shapes and strides, never values.

The functions here get the arguments of a call by name, its result, and the function that was called. They return a
Call, or one of SKIP_... if the call cannot be described. They must not guess: what they do not understand is
SKIP_UNKNOWN.
"""

from __future__ import annotations

from typing import Any

from .calls import ALL_KEYS, BOTTOM_RIGHT, NO_MASK, SKIP_FP8, SKIP_LAYOUT, SKIP_MASK, TOP_LEFT, Call, Given, Seam
from .tap import LAYOUTS

# -- Transformer Engine: fused_attn_fwd() and fused_attn_bwd() of transformer_engine.pytorch.cpp_extensions --

ENGINE_READ = frozenset({
    "q", "k", "v", "cu_seqlens_q", "attn_scale", "dropout", "qkv_layout", "attn_bias_type", "attn_mask_type",
    "window_size",
})  # fmt: skip
# With a dense layout the lengths and offsets are those of full sequences. Quantizers are used for fp8 only. The rest
# concerns types of the quantized tensors, random numbers, and how the kernel is launched.
ENGINE_IGNORED = frozenset({
    "is_training", "max_seqlen_q", "max_seqlen_kv", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded",
    "fake_dtype", "dqkv_dtype", "fused_attention_backend", "attn_bias", "s_quantizer", "o_quantizer", "dp_quantizer",
    "dqkv_quantizer", "fast_zero_fill", "rng_gen", "deterministic", "cuda_graph", "qkv_scale_inv_format",
    "do_scale_inv_format", "page_table_k", "page_table_v", "o_format", "do_format", "dqkv_layout", "softmax_type",
    "softmax_offset", "bottom_right_diagonal", "return_max_logit",
})  # fmt: skip
_ENGINE_LAYOUTS = {"bhsd": LAYOUTS["bhnd"], "bshd": LAYOUTS["bnhd"], "sbhd": LAYOUTS["nbhd"]}


def _is_plain(tensor: Any) -> bool:
    """Whether the tensor has the numbers that it stands for. Quantized tensors are of other classes, or bytes."""
    return type(tensor).__module__ in ("torch", "torch.nn.parameter") and tensor.dtype.itemsize > 1


def engine_formats(layout: str) -> tuple[str, str]:
    """The formats of query and key in a layout of Transformer Engine: "sbh3d" -> ("sbhd", "sbhd")."""
    parts = layout.replace("3", "").replace("2", "").split("_")
    return parts[0], parts[1] if len(parts) > 1 else parts[0]


def _reordered(tensor: Any, have: str, want: str) -> Any:
    return tensor if have == want or tensor is None else tensor.permute(*(have.index(axis) for axis in want))


def _engine_causal(given: Given, queries: int, keys: int) -> tuple[int, tuple[int, int]] | None:
    """FORESHOCK_CAUSAL_... and the window; None if they cannot be described."""
    mask, window = given["attn_mask_type"], tuple(given["window_size"] or ALL_KEYS)
    if given["attn_bias_type"] != "no_bias" or given.get("softmax_type", "vanilla") != "vanilla":
        return None
    if mask not in ("no_mask", "causal", "causal_bottom_right") or len(window) != 2 or min(window) < -1:
        return None
    left, right = window
    # A window of "no_mask" has no corner before 2.12, and releases of cuDNN differ; so the call must be square.
    if queries != keys and (left != -1 or (mask == "no_mask" and right != -1)):
        return None
    if mask == "no_mask":
        return NO_MASK, window
    if right not in (-1, 0):
        return None
    # From 2.12 on, another argument gives the corner too. If the two contradict each other, the mask must be square.
    corner = given.get("bottom_right_diagonal")
    if corner is not None and corner != (mask == "causal_bottom_right") and queries != keys:
        return None
    return BOTTOM_RIGHT if mask == "causal_bottom_right" else TOP_LEFT, (left, -1)


def _engine(given: Given, out: Any, aux: Any, gradients: tuple[Any, ...] | None, dropout: float) -> Call | int:
    query, key, value = given["q"], given["k"], given["v"]
    used = (query, key, value, out, *(gradients or ())[:2])
    if not all(_is_plain(tensor) for tensor in used):
        return SKIP_FP8
    query_format, key_format = engine_formats(given["qkv_layout"])
    if {query_format, key_format} - set(_ENGINE_LAYOUTS) or given.get("page_table_k") is not None:
        return SKIP_LAYOUT
    if any(tensor.dim() != 4 for tensor in used):
        return SKIP_LAYOUT
    position, head, batch = (query_format.index(axis) for axis in "shb")
    seen = _engine_causal(given, query.shape[position], key.shape[key_format.index("s")])
    if seen is None:
        return SKIP_MASK
    causal, window = seen
    # The query itself, and no view of it: only the query leads to the parameters that it was computed from.
    key, value = (_reordered(tensor, key_format, query_format) for tensor in (key, value))
    out_format = given.get("o_format", query_format)
    if gradients is not None:
        of_query, of_key = engine_formats(given.get("dqkv_layout", given["qkv_layout"]))
        formats = (given.get("do_format", query_format), of_query, of_key, of_key)
        if set(formats) - set(_ENGINE_LAYOUTS):
            return SKIP_LAYOUT
        optional = (g if g is not None and _is_plain(g) and g.dim() == 4 else None for g in gradients[2:4])
        given_gradients = (*gradients[:2], *optional)
        gradients = tuple(_reordered(g, have, query_format) for g, have in zip(given_gradients, formats))
    if out_format not in _ENGINE_LAYOUTS:
        return SKIP_LAYOUT
    # Kernels for short sequences store the probabilities there, which have another shape.
    shape = (query.shape[batch], query.shape[head], query.shape[position], 1)
    lse = aux[0] if aux and not given.get("return_max_logit") else None
    if lse is not None and not (_is_plain(lse) and tuple(lse.shape) == shape and lse.dtype.itemsize == 4):
        lse = None
    return Call(
        query, key, value, _reordered(out, out_format, query_format), lse, given["attn_scale"], causal,
        _ENGINE_LAYOUTS[query_format], dropout=dropout, window=window, gradients=gradients,
    )  # fmt: skip


def engine_forward(given: Given, result: Any, _: Any) -> Call | int:
    is_training = given["is_training"]
    return _engine(given, result[0], result[1] if is_training else None, None, given["dropout"] * bool(is_training))


def engine_backward(given: Given, result: Any, _: Any) -> Call | int:
    gradients = (given["d_o"], *result[:3])
    return _engine(given, given["o"], given["aux_ctx_tensors"], gradients, given["dropout"])


# -- flash-attn 4: _flash_attn_fwd() and _flash_attn_bwd() of flash_attn.cute.interface --

_FLASH4_MASKED = ("learnable_sink", "score_mod", "mask_mod")
_FLASH4_STORED = (
    "qv", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "page_table", "q_descale", "k_descale", "v_descale",
    "gather_kv_indices", "block_sparse_tensors",
)  # fmt: skip
FLASH4_READ = frozenset({
    "q", "k", "v", "softmax_scale", "causal", "softcap", "window_size_left", "window_size_right", *_FLASH4_MASKED,
    "cu_seqlens_q", "cu_seqlens_k",
})  # fmt: skip
# Other arguments, which choose how a kernel is launched or where it writes.
FLASH4_IGNORED = frozenset({
    *_FLASH4_STORED, "max_seqlen_q", "max_seqlen_k", "min_seqlen_k", "tile_mn", "mma_pv_is_rs", "intra_wg_overlap",
    "num_threads", "num_splits", "pack_gqa", "_arch", "return_lse", "out", "lse", "scheduler_metadata",
    "seqlen_k_per_split", "disable_scheduler_metadata", "gather_bwd_recompute_p", "dout", "m_block_size",
    "n_block_size", "num_stages_Q", "num_stages_dO", "SdP_swapAB", "dKV_swapAB", "dQ_swapAB", "AtomLayoutMSdP",
    "AtomLayoutNdKV", "AtomLayoutMdQ", "V_in_regs", "deterministic", "dq", "dk", "dv", "score_mod_bwd",
})  # fmt: skip


def _flash4(given: Given, out: Any, lse: Any, gradients: tuple[Any, Any, Any, Any] | None) -> Call | int:
    query, key, value = given["q"], given["k"], given["v"]
    if not all(_is_plain(tensor) for tensor in (query, key, value, out)):
        return SKIP_FP8
    if query.dim() != 4 or any(given.get(name) is not None for name in _FLASH4_STORED):
        return SKIP_LAYOUT
    window = tuple(-1 if size is None else size for size in (given["window_size_left"], given["window_size_right"]))
    if min(window) < -1 or any(given[name] is not None for name in _FLASH4_MASKED):
        return SKIP_MASK
    causal = BOTTOM_RIGHT if given["causal"] else NO_MASK
    if (causal or window != ALL_KEYS) and query.shape[1] > key.shape[1]:
        return SKIP_MASK  # queries may see no key
    return Call(
        query, key, value, out, lse, given["softmax_scale"], causal, LAYOUTS["bnhd"], window=window,
        soft_cap=given["softcap"] or 0.0, gradients=gradients,
    )  # fmt: skip


def flash4_forward(given: Given, result: Any, _: Any) -> Call | int:
    return _flash4(given, result[0], result[1], None)


def flash4_backward(given: Given, result: Any, _: Any) -> Call | int:
    return _flash4(given, given["out"], given["lse"], (given["dout"], *result[:3]))


_ENGINE = "transformer_engine.pytorch.cpp_extensions.fused_attn"
_FLASH4 = "flash_attn.cute.interface"
SEAMS = (
    Seam(
        _ENGINE, "fused_attn_fwd", "transformer_engine", False, engine_forward, ENGINE_READ | {"is_training"},
        ENGINE_IGNORED, in_function=True, other_tensor="cu_seqlens_q",
    ),
    Seam(
        _ENGINE, "fused_attn_bwd", "transformer_engine", True, engine_backward,
        ENGINE_READ | {"o", "d_o", "aux_ctx_tensors"}, ENGINE_IGNORED, in_function=True, other_tensor="cu_seqlens_q",
    ),
    Seam(
        _FLASH4, "_flash_attn_fwd", "flash_attn_4", False, flash4_forward, FLASH4_READ, FLASH4_IGNORED,
        in_function=True,
    ),
    Seam(
        _FLASH4, "_flash_attn_bwd", "flash_attn_4", True, flash4_backward, FLASH4_READ | {"out", "dout", "lse"},
        FLASH4_IGNORED, in_function=True,
    ),
)  # fmt: skip
