"""Derives names of parameters and labels of layers ("003", or "encoder.003" if the number alone is not unique). A name
is the dotted path of a parameter. A stack is the path of a list of layers ("encoder.layers"), a tower the part of this
path that distinguishes it from other stacks ("encoder")."""

from __future__ import annotations

import re

from .rows import Row

LABEL_BYTES = 31  # a layer label has at most so many bytes in the segment (shared memory that the agent reads)

# Names of projections that compute queries.
QUERY_WORDS = {
    "q_proj", "wq", "to_q", "q_lin", "q", "query", "query_proj", "linear_q", "qkv", "qkv_proj", "wqkv", "to_qkv",
    "in_proj", "in_proj_weight", "c_attn", "att_proj", "linear_qkv", "query_key_value",
}  # fmt: skip


_NUMBER = r"[0-9]+"
# The path of a weight below its projection, which is a wrapper: LoRA, LinearNorm of timm.
_WRAPPED_PART = r"\.(linear|base_layer|lora_[AB](\.[^.]+)?)$"


def as_bytes(name: str) -> bytes:
    """The name as UTF-8. A surrogate, which Python allows and UTF-8 does not, becomes its escape (\\udc80)."""
    return name.encode(errors="backslashreplace")


class Named(Row):
    """The name of a parameter, and the framework's number of the layer that contains it."""

    name: str
    layer: str = ""  # path, within its model, of the module to which the framework gave the number; "": no number
    number: int | None = None
    model: str = ""  # prefix of the name if several models have parameters of the same name


def naming_order(name: str, is_trained: bool) -> tuple[bool, bool, int]:
    """Sort key: libforeshock.so keeps a limited number of names, so parameters that identify attention go first.

    The layer of an attention call is found by the weight of its query projection, if that weight is trained. So trained
    weights go first, and among these the weights with a name in QUERY_WORDS. Of two such weights, the one with fewer
    numbers in its path goes first, since the many experts of a model are numbered within a numbered layer.
    """
    word = name.removesuffix(".weight").rpartition(".")[2].lower()
    return not is_trained, word not in QUERY_WORDS, len(re.findall(_NUMBER, name))


def plain_name(name: str) -> str:
    """The parameter's name without the parts that wrappers (DDP, compile, FSDP, checkpointing) add."""
    wrappers = r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."  # at the start or after a dot
    name = re.sub(wrappers, "", name)
    while name.startswith("module."):
        name = re.sub(wrappers, "", name.removeprefix("module."))
    return name


def with_number(name: str, numbers: dict[str, int]) -> Named:
    """`name` with the number of the outermost module around it that has one. `numbers`: {module path: number}."""
    parts = name.split(".")
    paths = (".".join(parts[:i]) for i in range(1, len(parts)))
    layer = next((path for path in paths if path in numbers), "")
    return Named(name, layer, numbers.get(layer))


def _split_at_number(name: str) -> tuple[str, int] | None:
    """The path before the first number, and the number: encoder.layers.3.q.weight gives ("encoder.layers", 3)."""
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[:i]), int(part)
    return None


def _distinct_part(prefix: str, prefixes: set[str]) -> str:
    """The shortest beginning of `prefix` that no other path in `prefixes` has, without the beginning that all of them
    share: "decoder" for "model.decoder.layers" beside "model.encoder.layers". "" if `prefix` is the only path."""
    if len(prefixes) < 2 or prefix not in prefixes:
        return ""
    paths = [p.split(".") for p in prefixes]
    # `common`: number of words at the beginning that all paths share.
    common = next((n for n, words in enumerate(zip(*paths)) if len(set(words)) > 1), min(map(len, paths)))
    path = prefix.split(".")
    lengths = range(common + 1, len(path) + 1)
    shortest = next((n for n in lengths if sum(p[:n] == path[:n] for p in paths) == 1), len(path))
    return ".".join(path[common:shortest])


def _attention_of(matrix: str) -> str:
    """Path of the attention module whose query projection is `matrix`; "" if `matrix` is not a query projection. A part
    of a query projection that PEFT's LoRA has split counts as the projection."""
    path = re.sub(_WRAPPED_PART, "", matrix.removesuffix(".weight"))
    module, _, word = path.rpartition(".")
    return module if word.lower() in QUERY_WORDS else ""


def _blocks_in_stages(matrices: list[str]) -> set[str]:
    """Paths of numbered blocks inside numbered modules, such as layers.0.blocks.3 of Swin. `matrices`: 2-D parameters.

    Of the numbered modules around an attention module, the block is the innermost one with matrices in several of its
    children, that is, also outside the attention. A numbered head of a list of heads has none outside, or is itself the
    attention module, so it is not a block.
    """
    children: dict[str, set[str]] = {}  # {numbered module: its children with matrices}
    for name in matrices:
        parts = name.split(".")
        for i, part in enumerate(parts[:-1]):
            if part.isdigit():
                children.setdefault(".".join(parts[: i + 1]), set()).add(parts[i + 1])
    blocks = set()
    for module in filter(None, map(_attention_of, matrices)):
        parts = module.split(".")
        numbered = [i for i, part in enumerate(parts[:-1]) if part.isdigit()]  # not the attention itself
        if len(numbered) < 2:
            continue
        candidates = (i for i in reversed(numbered) if len(children[".".join(parts[: i + 1])]) > 1)
        innermost = next(candidates, numbered[0])
        if innermost != numbered[0]:  # else the outermost module is the block, and one number identifies it
            blocks.add(".".join(parts[: innermost + 1]))
    return blocks


def _innermost_around(name: str, paths: set[str]) -> str:
    """The innermost of `paths` that contains `name`, else ""."""
    outer = (name[:dot] for dot in range(len(name) - 1, 0, -1) if name[dot] == ".")  # the longest first
    return next((path for path in outer if path in paths), "")


def _without_numbers(path: str) -> str:
    return ".".join(part for part in path.split(".") if not part.isdigit())


def _numbers_in(path: str) -> list[tuple[str, str]]:
    """Each number with the words right before it: layers.0.blocks.3 gives [("layers", "0"), ("blocks", "3")]."""
    found, words = [], []
    for part in path.split("."):
        if part.isdigit():
            found.append((".".join(words), part))
            words = []
        else:
            words.append(part)
    return found


def _block_label(block: str, blocks: set[str]) -> str:
    """The numbers in the path of a block, and the words that distinguish it from blocks with the same numbers.

    layers.0.blocks.1 gives 000.001. layers.0.encoder.1 gives 000.encoder.001 if there is also layers.0.decoder.1.
    """
    own, others = _numbers_in(block), [_numbers_in(other) for other in blocks]
    label = []
    for i, (words, number) in enumerate(own):
        # The words before number `i` in all blocks whose earlier numbers are those of this block. The words before the
        # first number are left to layer_labels().
        siblings = {o[i][0] for o in others if len(o) > i and [n for _, n in o[:i]] == [n for _, n in own[:i]]}
        if i > 0 and (tower := _distinct_part(words, {s for s in siblings if s})):
            label.append(tower)
        label.append(f"{int(number):03d}")
    return ".".join(label)


def _further_attention(matrices: list[str], layers: dict[str, str]) -> dict[str, str]:
    """{path: words} of every attention module of a layer except the first one, such as the cross attention of a
    decoder. The words distinguish it from other attention modules of its layer. Paths that differ only in numbers, such
    as those of a list of heads, have the same words. `layers`: {matrix: layer label}."""
    modules: dict[str, dict[str, set[str]]] = {}  # {layer label: {path without numbers: paths}}
    for name in matrices:
        if module := _attention_of(name):
            modules.setdefault(layers[name], {}).setdefault(_without_numbers(module), set()).add(module)
    found = {}
    for paths in modules.values():
        for words in list(paths)[1:]:
            found |= dict.fromkeys(paths[words], _distinct_part(words, set(paths)))
    return found


def layer_labels(matrices: list[str], names: list[str]) -> dict[str, str]:
    """{name: last LABEL_BYTES characters of its layer's label}. `matrices`: names of the 2-D parameters.

    Layers whose labels would be equal get their paths as labels: layers.0.3 beside layers.0.blocks.3.
    """
    prefixes = {split[0] for name in matrices if (split := _split_at_number(name))}
    blocks = _blocks_in_stages(matrices)

    def layer_of(name: str) -> tuple[str, str]:
        """(path, last LABEL_BYTES characters of the label) of the layer that contains the parameter."""
        split = _split_at_number(name)
        if split is None:
            path = name.rpartition(".")[0] or name  # its module
            return path, path[-LABEL_BYTES:]
        stack, number = split  # "encoder.layers", 3
        tower = _distinct_part(stack, prefixes) if stack in prefixes else stack  # not in `prefixes`: no matrices
        block = _innermost_around(name, blocks)
        # Every block has a number, so `or` only satisfies the type checker.
        blocks_of_stack = {other for other in blocks if (_split_at_number(other) or ("",))[0] == stack}
        numbers = _block_label(block, blocks_of_stack) if block else f"{number:03d}"
        return block or f"{stack}.{number}".lstrip("."), f"{tower}.{numbers}".lstrip(".")[-LABEL_BYTES:]

    layers = {name: layer_of(name) for name in {*matrices, *names}}
    paths: dict[str, set[str]] = {}  # {label: paths of the layers that have it}
    for path, label in layers.values():
        paths.setdefault(label, set()).add(path)
    labels = {name: path if len(paths[label]) > 1 else label for name, (path, label) in layers.items()}
    further = _further_attention(matrices, labels)
    modules = set(further)
    for name in names:
        if module := _innermost_around(name, modules):
            labels[name] += "." + further[module]
    return {name: labels[name][-LABEL_BYTES:] for name in names}


def numbered_labels(rows: list[Named]) -> dict[str, str]:
    """{name: label} of the parameters whose layer has a number from the framework (Megatron).

    The framework counts layers over all pipeline stages; the numbers in a path start again in each stage. A stack of
    layers is left out if two of its layers have the same number from the framework (for example, if all are 1).
    """
    layers: dict[tuple[str, int], set[tuple[str, str]]] = {}  # {(stack, number): layers with this number}
    numbered = [row for row in rows if row.number is not None]
    for row in numbered:
        layers.setdefault((_stack_path(row), row.number), set()).add((row.model, row.layer))
    stacks = {_stack_path(row) for row in numbered}
    doubtful = {stack for (stack, _), same_number in layers.items() if len(same_number) > 1}
    return {
        row.name: f"{_distinct_part(_stack_path(row), stacks)}.{row.number:03d}".lstrip(".")[-LABEL_BYTES:]
        for row in numbered
        if _stack_path(row) not in doubtful
    }


def _stack_path(row: Named) -> str:
    """The path that contains the numbered layers: `decoder.layers` for a parameter in decoder.layers.3."""
    return ".".join(part for part in row.layer.split(".")[:-1] if not part.isdigit())
