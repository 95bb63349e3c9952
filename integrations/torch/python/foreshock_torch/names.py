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
_ADAPTER = re.compile(r"\.(base_layer|lora_[AB](\.[^.]+)?)$")


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
    """The shortest beginning of `prefix` that no other one has, without what all of them begin with."""
    if len(prefixes) < 2 or prefix not in prefixes:
        return ""
    paths = [p.split(".") for p in prefixes]
    common = next((n for n, words in enumerate(zip(*paths)) if len(set(words)) > 1), min(map(len, paths)))
    path = prefix.split(".")
    lengths = range(common + 1, len(path) + 1)
    shortest = next((n for n in lengths if sum(p[:n] == path[:n] for p in paths) == 1), len(path))
    return ".".join(path[common:shortest])


def _attention_of(matrix: str) -> str:
    """Path of the module whose query projection `matrix` is, or is an adapter of (PEFT's LoRA); else ""."""
    path = _ADAPTER.sub("", matrix.removesuffix(".weight"))
    module, _, word = path.rpartition(".")
    return module if word.lower() in QUERY_WORDS else ""


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
    for module in filter(None, map(_attention_of, matrices)):
        parts = module.split(".")
        numbered = [at for at, part in enumerate(parts[:-1]) if part.isdigit()]
        if len(numbered) < 2:
            continue
        within = (at for at in reversed(numbered) if len(children[".".join(parts[: at + 1])]) > 1)
        innermost = next(within, numbered[0])
        if innermost != numbered[0]:
            blocks.add(".".join(parts[: innermost + 1]))
    return blocks


def _around(name: str, paths: set[str]) -> str:
    """The innermost of `paths` that it lies in, else ""."""
    outer = (name[:at] for at in range(len(name) - 1, 0, -1) if name[at] == ".")
    return next((path for path in outer if path in paths), "")


def _words(path: str) -> str:
    return ".".join(part for part in path.split(".") if not part.isdigit())


def _numbered(path: str) -> list[tuple[str, str]]:
    """[("layers", "0"), ("blocks", "3")] of layers.0.blocks.3: what stands before each number, and the number."""
    found, words = [], []
    for part in path.split("."):
        if part.isdigit():
            found.append((".".join(words), part))
            words = []
        else:
            words.append(part)
    return found


def _block_label(block: str, blocks: set[str]) -> str:
    """The numbers of a block within its stage, and the words in which it differs from blocks with the same numbers, as
    000.encoder.001 where 000.decoder.001 exists."""
    own, others = _numbered(block), [_numbered(other) for other in blocks]
    label = []
    for at, (words, number) in enumerate(own):
        siblings = {o[at][0] for o in others if len(o) > at and [n for _, n in o[:at]] == [n for _, n in own[:at]]}
        if at > 0 and (tower := _tower(words, {s for s in siblings if s})):
            label.append(tower)
        label.append(f"{int(number):03d}")
    return ".".join(label)


def _further_attention(matrices: list[str], layers: dict[str, str]) -> dict[str, str]:
    """{path: word} of the attention modules of a layer after its first one, such as the cross attention of a decoder:
    the words in which it differs from the others. `layers` are the labels of the matrices."""
    modules: dict[str, dict[str, str]] = {}  # of each layer: {path without numbers: path}
    for name in matrices:
        if module := _attention_of(name):
            modules.setdefault(layers[name], {}).setdefault(_words(module), module)
    found = {}
    for of_layer in modules.values():
        for words in list(of_layer)[1:]:
            found[of_layer[words]] = _tower(words, set(of_layer))
    return found


def layer_labels(matrices: list[str], names: list[str]) -> dict[str, str]:
    """Label of the layer each of `names` belongs to, at most 31 characters; `matrices` are the 2-D parameters."""
    prefixes = {split[0] for name in matrices if (split := _split(name))}
    blocks = _blocks_in_stages(matrices)

    def label_of(name: str) -> str:
        split = _split(name)
        if split is None:
            return name.rpartition(".")[0] or name
        tower = _tower(split[0], prefixes) if split[0] in prefixes else split[0]
        block = _around(name, blocks)
        beside = {other for other in blocks if (_split(other + ".") or ("",))[0] == split[0]}
        return f"{tower}.{_block_label(block, beside) if block else f'{split[1]:03d}'}".lstrip(".")

    labels = {name: label_of(name) for name in names}
    further = _further_attention(matrices, {name: label_of(name) for name in matrices})
    for name in names:
        if module := _around(name, set(further)):
            labels[name] += "." + further[module]
    return {name: label[-LABEL_BYTES:] for name, label in labels.items()}


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
