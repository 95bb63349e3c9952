"""Finds the attention modules of a model, and other modules that mix positions (linear attention, state space), by the
names and shapes of their parameters. A call of attention is seen only if a hook intercepts it; the inventory says which
layers have attention at all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .modules import children_of
from .rows import Row

ATTENTION, OTHER = 1, 2  # FORESHOCK_MIXER_... of hook.h


class Mixer(Row):
    """A module that mixes positions."""

    layer: str | None  # label of the parameter that computes its query, which is the label of its calls; None: unknown
    name: str  # class of the module
    kind: int  # ATTENTION or OTHER
    is_trained: bool  # a parameter of the module needs a gradient
    owner: type  # the class itself


# Words in the name of a projection: q_proj, to_q, wq and linear_q_up_proj have the word "q" or "wq".
_QUERY = {"q", "wq", "qs", "query", "queries"}
_KEY = {"k", "wk", "ks", "key", "keys", "kv", "wkv"}
_VALUE = {"v", "wv", "vs", "value", "values", "kv", "wkv"}
_FUSED_WORDS = {"qkv", "wqkv"}  # one matrix computes queries, keys and values
_FUSED_NAMES = {"c_attn", "in_proj_weight", "att_proj"}
# Parameters and children that only other mixers have.
_OTHER_NAMES = {
    "a_log", "dt_bias", "dt_proj", "q_conv1d", "in_proj_ba", "in_proj_qkvz", "rg_lru", "time_decay", "time_first",
}  # fmt: skip
# Classes of other mixers. They count as such only with projections of their own, since a whole model may be "Mamba".
# Patterns are strings, which `re` compiles at their first use: `import torch` must not wait for it.
_OTHER_CLASS = (
    r"Mamba|R[Ww][Kk][Vv]|Delta_?Net|LinearAtt|LinearSelfAtt|Lightning_?Att|Retention|Hyena|GatedLinear|SSM|StateSpace"
)
_NOT_A_MIXER = r"(?i)feed_?forward|ffn|mlp|channel_?mix|norm|moe|expert|cache|embed"
_ATTENTION_NAME = r"(?i)att(n|ention)"
_CAMEL = r"(?<=[a-z0-9])(?=[A-Z])"


def _words(name: str) -> set[str]:
    return set(re.sub(_CAMEL, "_", name).lower().split("_"))


def _own_parameters(module: Any) -> list[tuple[str, Any]]:
    """(name, parameter), without those of a lazy module (nn.LazyLinear) that was never called: they have no shape."""
    own = list(vars(module).get("_parameters", {}).items())
    return [(name, p) for name, p in own if p is not None and not hasattr(type(p), "materialize")]


def _matrices_of(module: Any, depth: int = 2) -> list[Any]:
    """The parameters with two or more dimensions of a projection: its weight. A wrapper (LoRA) has it in a child."""
    own = [p for _, p in _own_parameters(module) if p.dim() >= 2]
    if depth > 0:
        own += [p for _, child in children_of(module) if child is not None for p in _matrices_of(child, depth - 1)]
    return own


def _projections(module: Any) -> dict[str, list[Any]]:
    """{name: weights} of the module's own parameters and of its children with two or more dimensions."""
    found = {name: [p] for name, p in _own_parameters(module) if p.dim() >= 2}
    for name, child in children_of(module):
        if child is not None and (weights := _matrices_of(child)):
            found[name] = weights
    return found


def _direct(module: Any) -> list[Any]:
    """The weights with two dimensions that the module has itself or in a child, not in a child of a child."""
    return [p for p in _matrices_of(module, 1) if p.dim() == 2]


def _is_other(module: Any, attribute: str, projections: dict[str, list[Any]]) -> bool:
    """Whether the module is linear attention or a state-space block."""
    class_name = type(module).__name__
    names = {name.lower() for name, _ in [*_own_parameters(module), *children_of(module)]}
    if names & _OTHER_NAMES and projections:
        return True
    is_named = re.search(_OTHER_CLASS, class_name) or attribute.lower() == "linear_attn"
    own = [p for p in _matrices_of(module, 1) if p.dim() == 2 or set(p.shape[2:]) == {1}]  # or a convolution of 1 x 1
    return bool(is_named) and len(own) >= 2 and not re.search(_NOT_A_MIXER, f"{class_name} {attribute}")


def _query_of(module: Any, attribute: str, projections: dict[str, list[Any]]) -> list[Any]:
    """The weights that compute the queries if the module is attention, else []."""
    words = {name: _words(name) for name in projections}

    def named(wanted: set[str]) -> list[str]:
        return [name for name in projections if words[name] & wanted]

    fused = named(_FUSED_WORDS) + [name for name in projections if name.lower() in _FUSED_NAMES]
    fused += [name for name in named(_QUERY) if words[name] & _KEY and words[name] & _VALUE]  # query_key_value
    if fused:
        return projections[fused[0]]
    is_attention = bool(re.search(_ATTENTION_NAME, type(module).__name__) or re.search(_ATTENTION_NAME, attribute))
    queries = named(_QUERY)
    if queries and (is_attention or (named(_KEY) and named(_VALUE))):
        # The last matrix of a low-rank query (q_a_proj, q_b_proj; linear_q_down_proj, linear_q_up_proj) computes it.
        return projections[next((name for name in queries if words[name] & {"b", "up"}), queries[0])]
    if not is_attention or re.search(_NOT_A_MIXER, type(module).__name__):
        return []
    # Attention written by hand with names of its own: a matrix with three times as many outputs as inputs beside an
    # output projection, or four projections of the same input.
    matrices = _direct(module)
    for p in matrices:
        long, short = max(p.shape), min(p.shape)
        if long == 3 * short and any(short in other.shape for other in matrices if other is not p):
            return [p]
    is_square = len(matrices) >= 4 and len({min(p.shape) for p in matrices}) == 1
    return matrices[:1] if is_square else []


def mixers_of(roots: Iterable[Any], label_of: Any) -> list[Mixer]:
    """All mixers in the models `roots`, each once. `label_of(parameter)`: the layer label of a parameter, or None."""
    found = []
    seen: set[int] = set()
    to_visit = [("", root) for root in roots][::-1]
    while to_visit:
        attribute, module = to_visit.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        projections = _projections(module)
        if projections and _is_other(module, attribute, projections):
            found.append(_mixer(module, projections, next(iter(projections.values())), OTHER, label_of))
        elif projections and (query := _query_of(module, attribute, projections)):
            found.append(_mixer(module, projections, query, ATTENTION, label_of))
        else:  # an item of a list has the attribute of the list: layers.0 is "layers"
            children = [(attribute if name.isdigit() else name, child) for name, child in children_of(module)]
            to_visit.extend(reversed(children))
    return found


def _mixer(module: Any, projections: dict[str, list[Any]], query: list[Any], kind: int, label_of: Any) -> Mixer:
    labels = [label for weight in query if (label := label_of(weight)) is not None]
    is_trained = any(p.requires_grad for weights in projections.values() for p in weights)
    return Mixer(labels[0] if labels else None, type(module).__name__, kind, is_trained, type(module))
