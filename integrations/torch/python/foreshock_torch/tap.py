"""foreshock.tap(): reports attention that no hook can see. The code of the training itself must call tap().

tap() calls a custom operation, so it becomes a node of compiled graphs without a graph break. The operation is marked
as having side effects, because torch.fx would drop it otherwise. The graph is the same whether the process is monitored
or not. The operation returns nothing, and its own kernels do nothing. The adapter (a C++ library with hooks on torch's
operations) hooks the custom operation as it hooks torch's attention, and reports the call. seams.py defines more
operations like it, by which wrapped functions report their calls.
"""

from __future__ import annotations

import sys
from typing import Any

from .signals import is_of_trainer

_SCHEMA = (  # {more}: the gradients, in the operation for the backward pass
    "(Tensor query, Tensor key, Tensor value, Tensor out, Tensor? logsumexp, Tensor? attn_mask, {more}"
    "Tensor? kept, float? scale, float soft_cap, int causal, int window_left, int window_right, int layout, "
    "float dropout_p, str? layer, bool entered, int reason) -> ()"
)
_GRADIENTS = "Tensor grad_out, Tensor grad_query, Tensor? grad_key, Tensor? grad_value, "
CAUSAL = {False: 0, True: 1, "top_left": 1, "bottom_right": 2}  # as FORESHOCK_CAUSAL_... of hook.h
LAYOUTS = {"bhnd": 0, "bnhd": 1, "nbhd": 2}  # as enum Order of attention.h
NOT_ENTERED, DESCRIBED = False, -1  # values of the arguments `entered` and `reason`: see attention.h

_library: Any = None  # keeps the definitions registered until the process ends
_forward: Any = None  # the custom operations for the two passes
_backward: Any = None
_torch: Any = None  # None: the operations are not defined
is_active = False  # set once the monitor has started (start.py)


def prepare() -> None:
    """Defines the operations once torch is imported. The adapter hooks an operation as soon as it is defined."""
    global _library, _forward, _backward, _torch
    torch = sys.modules.get("torch")
    if _library is not None or torch is None or not hasattr(torch, "library"):
        return
    _library, _torch = torch.library.Library("foreshock", "DEF"), torch
    _forward, _backward = define("tap")


def define(name: str) -> tuple[Any, Any]:
    """Defines two operations of the namespace foreshock, for the two passes: `name` and `name`_backward. The adapter
    hooks them. Call prepare() before."""
    from torch.fx.node import has_side_effect

    operations = []
    for full_name, more in ((name, ""), (f"{name}_backward", _GRADIENTS)):
        _library.define(full_name + _SCHEMA.format(more=more))
        for dispatch_key in ("CompositeExplicitAutograd", "Meta"):
            _library.impl(full_name, _do_nothing, dispatch_key)
        operations.append(getattr(_torch.ops.foreshock, full_name).default)
        has_side_effect(operations[-1])
    return operations[0], operations[1]


def _do_nothing(*arguments: Any) -> None:
    return


def tap(
    query: Any, key: Any, value: Any, out: Any, lse: Any = None, *, layer: Any = None, scale: float | None = None,
    causal: Any = False, mask: Any = None, grad_out: Any = None, grad_query: Any = None, layout: str = "bhnd",
    grad_key: Any = None, grad_value: Any = None, soft_cap: float = 0.0, dropout: float = 0.0, kept: Any = None,
    window: tuple[int, int] = (-1, -1),
) -> None:  # fmt: skip
    """Reports one attention call: out = softmax(scale * query @ key^T + mask) @ value, per head.

    query (batch, heads, positions, d), key and value with as many heads or a divisor of that number; `layout="bnhd"`:
    positions before heads; "nbhd": positions first. `lse` (batch, heads, positions): natural logarithm of the row sums
    of exp(score). `scale`: 1/sqrt(d) if not given. `causal`: True or "top_left": key j is visible to query i if j <= i;
    "bottom_right": if j <= i + keys - queries. `window`: (left, right), query i sees only the keys from i - left to
    i + right (with "bottom_right", and if `causal` is False: from i + keys - queries - left on, and so on); -1: all.
    `mask`: bool (True: visible) or additive, broadcast. `layer`: a number or a name.

    `soft_cap` above 0: the scores are soft_cap * tanh(scale * query @ key^T / soft_cap), before the mask is added.
    `dropout`: the probability with which weights were replaced by 0, and the others multiplied by 1 / (1 - dropout).
    `kept`, broadcast like a mask: not 0 where the weight was kept; bool, or the weights after dropout. Without it only
    scores and `lse` of a call with dropout are checked, and no backward pass.

    Without `grad_out` or `grad_query` the call describes a forward pass. To report a backward pass, call tap() where
    that pass is computed (autograd.Function.backward), with `grad_out` and the resulting `grad_query`, and with
    `grad_key` and `grad_value` if they are to be checked. The call changes no tensor, keeps no reference and does not
    wait.
    """
    alignment, order = CAUSAL.get(causal), LAYOUTS.get(layout)
    if alignment is None or order is None:
        raise ValueError("tap: causal is False, True, 'top_left' or 'bottom_right'; layout is 'bhnd', 'bnhd' or 'nbhd'")
    if _torch is None:
        return
    compiling = _torch.compiler.is_compiling()
    if not compiling and not is_active:  # a compiled graph has the operation even if the process is not monitored
        return
    name = f"{layer:03d}" if type(layer) is int else layer  # like the labels of other attention layers
    rest = (kept, scale, soft_cap, alignment, *window, order, dropout, name, NOT_ENTERED, DESCRIBED)
    if grad_out is None or grad_query is None:
        _call(compiling, _forward, (query, key, value, out, lse, mask, *rest))
    else:
        _call(
            compiling, _backward, (query, key, value, out, lse, mask, grad_out, grad_query, grad_key, grad_value, *rest)
        )


def _call(compiling: bool, operation: Any, arguments: tuple[Any, ...]) -> None:
    if compiling:  # an exception may be one that the compiler expects, so it is not caught
        operation(*arguments)
        return
    try:
        operation(*arguments)
    except Exception as error:
        if is_of_trainer(error):  # raised by a signal handler or another thread of the training
            raise
        return  # arguments of other types, or a transform that torch cannot dispatch (vmap): the call is not reported
