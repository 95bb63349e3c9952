"""Describes the eager functions of transformers, for seams.py.

No kernel fixes the meaning of such a function: its statements do. A function is described only if its statements are
known ones. Reads shapes and strides. Other attention that is written out in torch operations: written.py.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

from .providers import NO_MASK, SKIP_MASK, SKIP_TOO_LARGE, SKIP_UNKNOWN, Call, Given, Sink
from .sinks import is_too_large
from .tap import LAYOUTS


def first(result: Any) -> Any:
    return result[0]


def _has_one_format(*tensors: Any) -> bool:
    """Under autocast, products are computed in another precision than that of the query."""
    return len({tensor.dtype for tensor in tensors}) == 1


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
