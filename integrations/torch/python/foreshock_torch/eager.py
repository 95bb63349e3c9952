"""Describes attention that a package writes out in torch operations, for seams.py: transformers' eager functions,
Megatron-core's local spec, x-transformers.

No kernel fixes the meaning of such a function: its statements do. A function is described only if its statements are
known ones, and a call only if all settings that change the scores in other ways are off. Reads shapes and strides; of
the values only masks, and those only on the CPU, where reading does not wait.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

from .providers import (
    BOTTOM_RIGHT,
    NO_MASK,
    SKIP_LAYOUT,
    SKIP_MASK,
    SKIP_TOO_LARGE,
    SKIP_UNKNOWN,
    TOP_LEFT,
    Call,
    Given,
    Sink,
)
from .sinks import is_too_large
from .sources import digest
from .tap import LAYOUTS


def first(result: Any) -> Any:
    return result[0]


def _has_one_format(*tensors: Any) -> bool:
    """Under autocast, products are computed in another precision than that of the query."""
    return len({tensor.dtype for tensor in tensors}) == 1


def _visible(hidden: Any, zeroed: Any = None) -> Any:
    """The mask of a call in which `hidden` scores are replaced by one large negative number; None: it cannot be
    described. A row of such scores only has equal weights, which no mask describes. An exception are the rows in
    `zeroed`, whose result is replaced by zeros. The values must be read to find such rows, which is done on the CPU
    only."""
    if hidden.device.type != "cpu":
        return None
    sees_none = hidden.all(-1)
    if zeroed is not None:
        sees_none = sees_none & ~zeroed
    return None if bool(sees_none.any()) else ~hidden


def _above_diagonal(mask: Any, queries: int, keys: int) -> Any:
    """The keys that a causal mask hides, aligned at the bottom right. On the device of `mask`."""
    return mask.new_ones((queries, keys), dtype=mask.dtype).triu(keys - queries + 1)


# -- transformers: eager_attention_forward() of each model --

EAGER_READ = frozenset({"module", "query", "key", "value", "attention_mask"})
# The source of a model's function is compared with the only ones that are understood (_EAGER_BODY), which shows all
# arguments that it reads.
EAGER_IGNORED = frozenset({"scaling", "dropout", "softcap", "position_bias", "kwargs"})
# The statements that a function may have, in this order. Without type annotations, docstring and comments.
# Compiled at the first call, since that takes milliseconds, which most trainings need not spend.
_EAGER_BODY = r"""
    (if\ scaling\ is\ None:\n\ {4}scaling\ =\ (query\.size\(-1\)|(?P<head_dim>module\.head_dim))\ \*\*\ \(?-0\.5\)?\n)?
    (?P<shared>key_states\ =\ repeat_kv\(key,\ module\.num_key_value_groups\)\n
    value_states\ =\ repeat_kv\(value,\ module\.num_key_value_groups\)\n)?
    attn_weights\ =\ torch\.matmul\(query,\ (?(shared)key_states|key)\.transpose\((2,\ 3|-1,\ -2)\)\)\ \*\ scaling\n
    (?P<softcap>if\ softcap\ is\ not\ None:\n
    \ {4}attn_weights\ =\ attn_weights\ /\ softcap\n
    \ {4}attn_weights\ =\ torch\.tanh\(attn_weights\)\n
    \ {4}attn_weights\ =\ attn_weights\ \*\ softcap\n)?
    (?P<bias>if\ position_bias\ is\ not\ None:\n\ {4}attn_weights\ =\ attn_weights\ \+\ position_bias\n)?
    if\ attention_mask\ is\ not\ None:\n
    (\ {4}attn_weights\ =\ attn_weights\ \+\ attention_mask\n
    |\ {4}causal_mask\ =\ attention_mask\[:,\ :,\ :,\ :(?(shared)key_states|key)\.shape\[-2\]\]\n
    \ {4}attn_weights\ =\ attn_weights\ \+\ causal_mask\n)
    ((?P<sink>
    (?P<optional>if\ module\.sinks\ is\ not\ None:\n)?
    (?(optional)\ {4})sinks\ =\ module\.sinks\.reshape\(1,\ -1,\ 1,\ 1\)
        \.expand\(query\.shape\[0\],\ -1,\ query\.shape\[-2\],\ -1\)\n
    (?(optional)\ {4})(?P<logits>combined_logits|attn_weights)\ =\ torch\.cat\(\[attn_weights,\ sinks\],\ dim=-1\)\n
    (?P=logits)\ =\ (?P=logits)\ -\ (?P=logits)\.max\(dim=-1,\ keepdim=True\)\.values\n
    probs\ =\ nn\.functional\.softmax\((?P=logits),\ dim=-1,\ dtype=(torch\.float32|(?P=logits)\.dtype)\)\n
    (?(optional)if\ module\.sinks\ is\ not\ None:\n\ {4}probs\ =\ probs\[\.\.\.,\ :-1\]\n
    |scores\ =\ probs\[\.\.\.,\ :-1\]\n)
    attn_weights\ =\ nn\.functional\.dropout\((?(optional)probs|scores),\ p=dropout,\ training=module\.training\)
        \.to\(value_states\.dtype\)\n)
    |attn_weights\ =\ nn\.functional\.softmax\(attn_weights,\ dim=-1(,\ dtype=torch\.float32)?\)
    (\.to\((query|value)\.dtype\))?\n
    (attn_weights\ =\ attn_weights\.type\(value\.dtype\)\n)?
    attn_weights\ =\ nn\.functional\.dropout\(attn_weights,\ p=dropout,\ training=module\.training\)\n)
    attn_output\ =\ torch\.matmul\(attn_weights,\ (?(shared)value_states|value)\)\n
    attn_output\ =\ attn_output\.transpose\(1,\ 2\)(\.contiguous\(\))?\n
    return\ \(attn_output,\ attn_weights\)
    """


@functools.cache
def _eager_form(function: Any) -> dict[str, bool] | None:
    """Which optional statements the function has; None: its source is not understood."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        body = definition.body[1:] if ast.get_docstring(definition) is not None else definition.body
        text = "\n".join(map(ast.unparse, body)).replace("= F.", "= nn.functional.")
    except (OSError, TypeError, SyntaxError, ValueError, AttributeError):
        return None
    found = re.fullmatch(_EAGER_BODY, text, re.VERBOSE)
    return None if found is None else {name: part is not None for name, part in found.groupdict().items()}


def eager_forward(given: Given, result: Any, function: Any) -> Call | int:
    form = _eager_form(function)
    if form is None:
        return SKIP_UNKNOWN
    query, key, value, module = (given[name] for name in ("query", "key", "value", "module"))
    scale = given.get("scaling")
    if scale is None:
        scale = module.head_dim**-0.5 if form["head_dim"] else query.shape[-1] ** -0.5
    if not _has_one_format(query, key, value, result[0]) or not isinstance(scale, (int, float)):
        return SKIP_UNKNOWN
    cap = given.get("softcap") if form["softcap"] else None
    if cap is not None and not (isinstance(cap, (int, float)) and cap > 0):
        return SKIP_MASK
    mask, bias = given["attention_mask"], given.get("position_bias") if form["bias"] else None
    if mask is not None:
        if not mask.dtype.is_floating_point:
            return SKIP_UNKNOWN  # the function adds it to the scores as it is
        mask = mask[..., : key.shape[-2]]
    if bias is not None:
        mask = bias.detach() if mask is None else bias.detach() + mask
    dropout = given.get("dropout", 0.0) if module.training else 0.0
    # The weights that the function returns are those after dropout. A weight may be 0 without dropout: it was hidden,
    # or too small for the format. Whether dropout kept such a weight has no effect.
    kept = result[1].detach() if dropout else None
    call = Call(
        query, key, value, _swapped(result[0]), None, float(scale), NO_MASK, LAYOUTS["bhnd"], mask, float(dropout),
        kept, float(cap or 0.0), of_out=_swapped,
    )  # fmt: skip
    if not form["sink"] or module.sinks is None:
        return call
    if is_too_large(call):
        return SKIP_TOO_LARGE
    # A copy: a sharded parameter may be freed before the backward pass.
    return call._replace(sink=Sink(module.sinks.detach().clone(), _weights_of_sink(result[1])))


def _weights_of_sink(weights: Any) -> Any:
    """The last column of the matrix of which `weights` are all others; None: dropout or a cast has made a copy."""
    whole = weights._base
    is_rest = whole is not None and whole.shape == (*weights.shape[:-1], weights.shape[-1] + 1)
    return whole.detach()[..., -1:] if is_rest and whole.data_ptr() == weights.data_ptr() else None


def _swapped(out: Any) -> Any:
    return out.transpose(1, 2)


def eager_rest(result: Any, replace: Callable[[Any], Any]) -> Any:
    return result[0], replace(result[1])


# -- Megatron-core: DotProductAttention of its local spec, positions before batch --

MEGATRON_READ = frozenset({"self", "query", "key", "value", "attention_mask"})
# The first is not used. The others must be None, which the function asserts.
MEGATRON_IGNORED = frozenset({"attn_mask_type", "attention_bias", "packed_seq_params"})
_SOFTMAX_PARTS = ("forward", "forward_torch_softmax", "forward_fused_softmax")
# Digests of the function -> those of these parts of its FusedScaleMaskSoftmax.
MEGATRON_FORMS = {
    "bdacc485a02c5bc8": ("18387b2359e07e14", "05aaca671ee2ac31", "0cf2cb5b096e7f33"),  # 0.10 to 0.14
    "345c4302cf9206c8": ("b08a7506fada8863", "51edf3eea4eac1a3", "0cf2cb5b096e7f33"),  # 0.15, 0.16
}
MEGATRON_MASK_FUNCTIONS = {"a1fbc93b130598df"}  # masked_fill_() with -10000


def megatron_forward(given: Given, result: Any, function: Any) -> Call | int:
    module, softmax = given["self"], given["self"].scale_mask_softmax
    parts = tuple(digest(getattr(type(softmax), name)) for name in _SOFTMAX_PARTS)
    if MEGATRON_FORMS.get(digest(function)) != parts or digest(softmax.mask_func) not in MEGATRON_MASK_FUNCTIONS:
        return SKIP_UNKNOWN
    query, key, value = given["query"], given["key"], given["value"]
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return SKIP_LAYOUT
    queries, batch, heads, _ = query.shape
    factor = 1.0 if softmax.scale is None else softmax.scale
    is_number = all(isinstance(number, (int, float)) for number in (module.softmax_scale, factor))
    if not is_number or not _has_one_format(query, key, value, result):
        return SKIP_UNKNOWN
    if getattr(module, "softmax_offset", None) is not None or getattr(softmax, "window_size", None) is not None:
        return SKIP_MASK
    mask, causal = given["attention_mask"], NO_MASK
    is_fused = softmax.is_kernel_available(mask, batch, heads, queries, key.shape[0])
    is_causal = softmax.attn_mask_type.name == "causal"
    if is_causal and (is_fused or mask is None):
        mask, causal = None, TOP_LEFT if queries > 1 else NO_MASK
    elif mask is not None:
        # What the fused kernel computes for a row that sees no key depends on its version.
        mask = None if is_fused or str(mask.dtype) != "torch.bool" or mask.dim() != 4 else _visible(mask)
        if mask is None:
            return SKIP_MASK
    dropout = module.attention_dropout.p if module.attention_dropout.training else 0.0

    def of_out(out: Any) -> Any:
        return out.unflatten(2, (heads, value.shape[-1]))

    return Call(
        query, key, value, of_out(result), None, float(module.softmax_scale * factor), causal, LAYOUTS["nbhd"], mask,
        float(dropout), of_out=of_out,
    )  # fmt: skip


# -- x-transformers: Attend --

ATTEND_READ = frozenset({"self", "q", "k", "v", "mask", "attn_bias", "prev_attn"})
# Releases before 2.20 do not have these. The last two are read only if a setting is on that must be off.
ATTEND_IGNORED = frozenset({"attn_delta", "causal", "row_mask", "flash_pack_seq_kwargs"})
ATTEND_FORMS = {  # digests of the function
    "5bb3da6b7a9aeac1", "55af84048e3cdb9e", "caabf34ab55947be", "beead930c452b5c1", "eaf2c269886ccf35",
}  # fmt: skip
# Settings that change scores or weights in a way that a Call does not describe.
_ATTEND_OFF = (
    "l2_distance", "softclamp_logits", "selective", "add_zero_kv", "head_learned_sink", "cog_signed", "cope",
    "inverted_attention", "pre_softmax_talking_heads", "post_softmax_talking_heads", "pre_scale_post_talking_heads",
)  # fmt: skip


def _is_softmax(function: Any) -> bool:
    """Whether `function` is the softmax over the keys, in the precision of the scores or in fp32."""
    import torch

    if not isinstance(function, functools.partial) or function.func is not torch.nn.functional.softmax or function.args:
        return False
    settings = dict(function.keywords)
    return settings.pop("dim", None) == -1 and settings.pop("dtype", torch.float32) is torch.float32 and not settings


def attend_forward(given: Given, result: Any, function: Any) -> Call | int:
    if digest(function) not in ATTEND_FORMS:
        return SKIP_UNKNOWN
    module, query, key, value = (given[name] for name in ("self", "q", "k", "v"))
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return SKIP_LAYOUT
    if any(getattr(module, name, None) for name in _ATTEND_OFF) or not _is_softmax(module.attn_fn):
        return SKIP_MASK
    if given["prev_attn"] is not None or given.get("attn_delta") is not None:
        return SKIP_MASK
    scale = query.shape[-1] ** -0.5 if module.scale is None else module.scale
    if not _has_one_format(query, key, value, result[0]) or not isinstance(scale, (int, float)):
        return SKIP_UNKNOWN
    queries, keys, kv_heads = query.shape[2], key.shape[2], key.shape[1]
    is_causal = module.causal if given.get("causal") is None else given["causal"]
    causal = BOTTOM_RIGHT if is_causal and queries > 1 else NO_MASK
    mask, bias = given["mask"], given["attn_bias"]
    if mask is not None:
        if mask.dim() not in (2, 4) or str(mask.dtype) != "torch.bool":
            return SKIP_UNKNOWN
        mask = mask[:, None, None] if mask.dim() == 2 else mask
        hidden, causal = ~mask | _above_diagonal(mask, queries, keys) if causal else ~mask, NO_MASK
        mask = _visible(hidden, zeroed=~mask.any(-1))
        if mask is None:
            return SKIP_MASK
    if bias is not None:
        if not bias.dtype.is_floating_point:
            return SKIP_UNKNOWN
        bias = bias.detach()
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))

    def grouped(tensor: Any) -> Any:
        """Orders the query heads so that those of a kv-head follow each other: head h reads kv-head h % kv_heads."""
        if kv_heads in (1, query.shape[1]):
            return tensor
        return tensor.unflatten(1, (-1, kv_heads)).transpose(1, 2).flatten(1, 2)

    if mask is not None and mask.dim() >= 3 and mask.shape[-3] > 1:
        mask = grouped(mask if mask.dim() == 4 else mask[None])
    dropout = module.attn_dropout.p if module.attn_dropout.training else 0.0
    return Call(
        grouped(query), key, value, grouped(result[0]), None, float(scale), causal, LAYOUTS["bhnd"], mask,
        float(dropout), of_out=grouped, of_query=grouped,
    )  # fmt: skip


def attend_rest(result: Any, replace: Callable[[Any], Any]) -> Any:
    for name in ("qk_similarities", "pre_softmax_attn", "post_softmax_attn"):
        setattr(result[1], name, replace(getattr(result[1], name)))
    return result
