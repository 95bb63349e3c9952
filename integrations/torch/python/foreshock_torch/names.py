"""What parameters and layers are called. Pure functions of names and numbers."""

from __future__ import annotations

import re
from typing import NamedTuple

LABEL_BYTES = 31  # of a layer, as the segment keeps it

# What projections with queries in them are called (libmonitor/heads.cpp).
QUERY_WORDS = {
    "q_proj", "wq", "to_q", "q_lin", "q", "query", "query_proj", "linear_q", "qkv", "qkv_proj", "wqkv", "to_qkv",
    "in_proj", "in_proj_weight", "c_attn", "att_proj", "linear_qkv", "query_key_value",
}  # fmt: skip


_NUMBER = re.compile(r"[0-9]+")


class Named(NamedTuple):
    """A parameter's name, and the number that its framework gave to the layer around it."""

    name: str
    layer: str = ""  # path of the module that has the number, within its model
    number: int | None = None
    model: str = ""  # what tells models apart whose parameters have the same names


def naming_order(name: str, is_trained: bool) -> tuple[bool, bool, int]:
    """The least is named first, as room for names is limited. The layer of an attention call is found by the projection
    of its query, if that trains: it is called so, or else has fewer numbers in its name than the many that take the
    room, such as experts, which are numbered within a layer that is."""
    word = name.removesuffix(".weight").rpartition(".")[2].lower()
    return not is_trained, word not in QUERY_WORDS, len(_NUMBER.findall(name))


def plain_name(name: str) -> str:
    """The parameter's name without what wrappers (DDP, compile, FSDP, checkpointing) put into it."""
    wrappers = r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
    name = re.sub(wrappers, "", name)
    while name.startswith("module."):
        name = re.sub(wrappers, "", name.removeprefix("module."))
    return name


def number_of(name: str, numbers: dict[str, int]) -> Named:
    """`name` with the number of the outermost module around it that has one; `numbers` are by module path."""
    parts = name.split(".")
    paths = (".".join(parts[:i]) for i in range(1, len(parts)))
    layer = next((path for path in paths if path in numbers), "")
    return Named(name, layer, numbers.get(layer))


def _split(name: str) -> tuple[str, int] | None:
    """("encoder.layers", 3) of encoder.layers.3.q.weight: what stands before the first number, and the number."""
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[:i]), int(part)
    return None


def _tower(prefix: str, prefixes: set[str]) -> str:
    """The last component that tells every tower from every other one, else the full prefix."""
    if len(prefixes) < 2:
        return ""
    paths = [p.split(".") for p in prefixes]
    for back in range(1, min(map(len, paths)) + 1):
        if len({path[-back] for path in paths}) == len(paths) and prefix in prefixes:
            return prefix.split(".")[-back]
    return prefix


def _blocks_in_stages(matrices: list[str]) -> set[str]:
    """Paths of blocks that have a number of their own within a numbered module, as layers.0.blocks.3 of Swin: innermost
    ones around a projection that hold a matrix beside its attention. A list of heads, or of experts, has none."""
    children: dict[str, set[str]] = {}  # of each numbered module: those that hold matrices
    for name in matrices:
        parts = name.split(".")
        for at, part in enumerate(parts[:-1]):
            if part.isdigit():
                children.setdefault(".".join(parts[: at + 1]), set()).add(parts[at + 1])
    blocks = set()
    for name in matrices:
        parts = name.removesuffix(".weight").split(".")
        numbered = [at for at, part in enumerate(parts[:-2]) if part.isdigit()]
        if len(numbered) < 2 or parts[-1].lower() not in QUERY_WORDS:
            continue
        within = (at for at in reversed(numbered) if len(children[".".join(parts[: at + 1])]) > 1)
        innermost = next(within, numbered[0])
        if innermost != numbered[0]:
            blocks.add(".".join(parts[: innermost + 1]))
    return blocks


def _block_of(name: str, blocks: set[str]) -> str:
    """The innermost of `blocks` that it lies in, else ""."""
    paths = (name[:at] for at in range(len(name) - 1, 0, -1) if name[at] == ".")
    return next((path for path in paths if path in blocks), "")


def layer_labels(matrices: list[str], names: list[str]) -> dict[str, str]:
    """Label of the layer each of `names` belongs to, at most 31 characters; `matrices` are the 2-D parameters."""
    prefixes = {split[0] for name in matrices if (split := _split(name))}
    blocks = _blocks_in_stages(matrices)
    labels = {}
    for name in names:
        split = _split(name)
        if split is None:
            labels[name] = (name.rpartition(".")[0] or name)[-LABEL_BYTES:]
            continue
        tower = _tower(split[0], prefixes) if split[0] in prefixes else split[0]
        numbers = [int(part) for part in _block_of(name, blocks).split(".") if part.isdigit()] or [split[1]]
        labels[name] = ".".join([tower, *(f"{number:03d}" for number in numbers)]).lstrip(".")[-LABEL_BYTES:]
    return labels


def numbered_labels(rows: list[Named]) -> dict[str, str]:
    """{name: label} of the parameters whose layer the framework has numbered.

    Such a number counts over all pipeline stages, which a path does not. A stack of layers in which two different
    layers bear one number (all of them 1, say) is left to its paths.
    """
    layers: dict[tuple[str, int], set[tuple[str, str]]] = {}
    numbered = [row for row in rows if row.number is not None]
    for row in numbered:
        layers.setdefault((_stack(row), row.number), set()).add((row.model, row.layer))
    stacks = {_stack(row) for row in numbered}
    doubtful = {stack for (stack, _), those in layers.items() if len(those) > 1}
    return {
        row.name: f"{_tower(_stack(row), stacks)}.{row.number:03d}".lstrip(".")[-LABEL_BYTES:]
        for row in numbered
        if _stack(row) not in doubtful
    }


def _stack(row: Named) -> str:
    """`decoder.layers` of a parameter in decoder.layers.3: what holds the numbered layers."""
    return ".".join(part for part in row.layer.split(".")[:-1] if not part.isdigit())
