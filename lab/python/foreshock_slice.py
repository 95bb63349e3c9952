"""Reads files of flagged slices (sampled rows of attention calls that foreshock run --save-flagged stored), and turns
each into the arguments of an attention call in torch. Files are untrusted, so check() validates their content. The file
format is described in docs/flagged.md."""

from __future__ import annotations

import json
import math
import pathlib
from dataclasses import dataclass

import torch

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "BOOL": torch.bool,
    "U32": torch.int32,  # torch has no arithmetic for uint32; the values in these files fit into int32
}
MOST_HEADER_BYTES = 1 << 20  # bytes of the file's header
MOST_ROWS = 16  # query rows of a slice
MOST_LENGTH = 1 << 24  # queries or keys of the call
MOST_MULTIPLICATIONS = 1 << 37  # multiplications of a call of the original size: some seconds on a CPU
MOST_MASK_ELEMENTS = 1 << 28  # elements of the mask of a call of the original size: 1 GiB in fp32


class SliceError(Exception):
    """The file is not a flagged slice, or its operation cannot be run here. The text is one line for the user."""


@dataclass
class Slice:
    """At most MOST_ROWS query rows, and the keys that they see. The rows belong to the query heads that share one
    key/value head. Each of these heads has the same number of rows, and the rows are sorted by head."""

    facts: dict[str, str]  # metadata of the file: scale, causal, op, ...
    # q, out, dout, dq: [rows, d]; k, v: [keys, d]. dout and dq are gradients. Row r is query position[r] of the call,
    # and sees the keys key_begin[r] (0 if it is absent) to key_limit[r] - 1, except those that mask[r] hides; kept[r]
    # is not 0 where dropout kept the weight of a key. lse: log-sum-exp. reference_...: the result in fp64.
    arrays: dict[str, torch.Tensor]

    @property
    def backward(self) -> bool:
        return "dq" in self.arrays

    @property
    def result(self) -> torch.Tensor:
        """The result of the trainer's kernel. `reference` is the same result computed in fp64."""
        return self.arrays["dq" if self.backward else "out"]

    @property
    def reference(self) -> torch.Tensor:
        return self.arrays["reference_dq" if self.backward else "reference_out"]

    @property
    def heads(self) -> int:
        return int(self.facts["heads_in_slice"])

    @property
    def lengths(self) -> tuple[int, int]:
        """Queries and keys of the original call."""
        return int(self.facts["query_length"]), int(self.facts["key_length"])


def read_slice(path: str) -> Slice:
    """Reads and checks a file; raises SliceError."""
    try:
        stored = read_arrays(pathlib.Path(path).read_bytes())
        check(stored)
    except OSError as error:
        raise SliceError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError, OverflowError, RecursionError) as error:
        raise SliceError(f"{path} is not a flagged slice: {str(error).splitlines()[0][:120]}") from error
    return stored


def read_arrays(raw: bytes) -> Slice:
    """Parses the safetensors format: length of the header, header in JSON, data. check() checks the content."""
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or not 0 < length <= min(MOST_HEADER_BYTES, len(raw) - 8):
        raise ValueError("it has no header")
    header = json.loads(raw[8 : 8 + length])
    facts = header.pop("__metadata__")
    data, arrays = raw[8 + length :], {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= len(data):
            raise ValueError(f"{name} lies beyond the end of the file")
        shape = [int(extent) for extent in entry["shape"]]
        dtype = TYPES[entry["dtype"]]
        empty = torch.empty(0, dtype=dtype)
        # frombuffer() needs aligned data, but an array may begin at any offset, so its bytes are copied.
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype) if end > begin else empty
        arrays[name] = flat.reshape(shape)
    return Slice(facts, arrays)


def check(stored: Slice) -> None:
    """Raises an exception if arrays and facts disagree; read_slice() converts it to a SliceError."""
    facts, arrays = stored.facts, stored.arrays
    if facts["format"] != "foreshock slice" or facts["schema"] != "1":
        raise ValueError("another format or schema")
    (rows, width), (keys, _) = arrays["q"].shape, arrays["v"].shape
    queries, call_keys = stored.lengths
    value_width = arrays["v"].shape[1]
    expected = {"q": (rows, width), "k": (keys, width), "out": (rows, value_width)}
    optional = {
        "mask": (rows, keys),
        "kept": (rows, keys),
        "lse": (rows,),
        "key_begin": (rows,),
        "dout": (rows, value_width),
        "dq": (rows, width),
    }
    expected |= {name: shape for name, shape in optional.items() if name in arrays}
    expected |= dict.fromkeys(("key_limit", "position", "head"), (rows,))
    expected["reference_dq" if stored.backward else "reference_out"] = tuple(stored.result.shape)
    for name, shape in expected.items():
        if tuple(arrays[name].shape) != shape:
            raise ValueError(f"{name} has not the shape of this slice")
    if not (0 < rows <= MOST_ROWS and stored.heads > 0 and rows % stored.heads == 0):
        raise ValueError("rows and heads do not belong together")
    if not (0 < queries <= MOST_LENGTH and 0 < keys <= call_keys <= MOST_LENGTH):
        raise ValueError("impossible lengths")
    if not (int(arrays["position"].min()) >= 0 and int(arrays["position"].max()) < queries):
        raise ValueError("positions beyond the queries")
    if not (int(arrays["key_limit"].min()) >= 0 and int(arrays["key_limit"].max()) <= keys):
        raise ValueError("key limits beyond the keys")
    if "key_begin" in arrays and not int(arrays["key_begin"].min()) >= 0:
        raise ValueError("a negative first key")
    # "not >=" is also true for NaN.
    if not math.isfinite(float(facts["scale"])) or not float(facts["figure.plain_error_norm"]) >= 0:
        raise ValueError("no scale, or no noise floor")


class Call:
    """The slice as an attention call with batch 1. If `whole`, the call has the original number of queries and keys;
    those that are not stored are 0. If MOST_MULTIPLICATIONS or MOST_MASK_ELEMENTS forbids this size, the call has only
    the stored rows and keys."""

    def __init__(self, stored: Slice, device: str) -> None:
        self.stored, self.device = stored, device
        arrays, heads = stored.arrays, stored.heads
        rows = arrays["q"].shape[0]
        queries, keys = stored.lengths
        work = heads * queries * keys * arrays["q"].shape[1]
        # The causal flag, if it suffices, hides keys without a mask tensor. A stored mask always needs the tensor.
        needs_mask = "mask" in arrays or (not self.causal_flag_suffices() and self.hides_keys())
        self.whole = work <= MOST_MULTIPLICATIONS and (not needs_mask or heads * queries * keys <= MOST_MASK_ELEMENTS)
        if not self.whole:
            queries, keys = rows // heads, arrays["k"].shape[0]
            needs_mask = "mask" in arrays or self.hides_keys()  # is_causal=True would be wrong for a selection of rows
        self.queries, self.keys = queries, keys
        # For each row of the slice: the index of its head, and the index of its query, in this call.
        self.head_of_row = torch.arange(rows) // (rows // heads)
        self.query_of_row = arrays["position"].long() if self.whole else torch.arange(rows) % (rows // heads)
        self.causal = self.whole and not needs_mask and self.causal_flag_suffices()
        self.mask = self.placed_mask().to(device) if needs_mask else None
        self.query = self.place(arrays["q"])
        self.key, self.value = (self.place_keys(arrays[name]) for name in ("k", "v"))

    def hides_keys(self) -> bool:
        """Whether some rows do not see all keys of the original call."""
        return "key_begin" in self.stored.arrays or bool(
            (self.stored.arrays["key_limit"] < self.stored.lengths[1]).any()
        )

    def causal_flag_suffices(self) -> bool:
        """Whether torch's is_causal=True can replace a mask tensor. It lets query n see keys 0 to n ("top-left"). With
        "bottom-right" the last query sees all keys: the same, if there are as many queries as keys."""
        queries, keys = self.stored.lengths
        causal = self.stored.facts["causal"]
        return causal == "top-left" or (causal == "bottom-right" and queries == keys)

    def place(self, rows: torch.Tensor) -> torch.Tensor:
        """Places the slice's rows, [rows, ...], into zeros of shape [1, heads, queries, ...], on the device."""
        placed = torch.zeros(1, self.stored.heads, self.queries, *rows.shape[1:], dtype=rows.dtype)
        placed[0, self.head_of_row, self.query_of_row] = rows
        return placed.to(self.device)

    def rows_of_slice(self, placed: torch.Tensor) -> torch.Tensor:
        """The rows of the slice in a result of the call, on the CPU: the inverse of place()."""
        return placed.detach().cpu()[0, self.head_of_row, self.query_of_row]

    def place_keys(self, rows: torch.Tensor) -> torch.Tensor:
        """Places [stored keys, d] into zeros of shape [1, heads, keys, d]. Keys that no row sees are not stored."""
        placed = torch.zeros(1, 1, self.keys, rows.shape[1], dtype=rows.dtype)
        placed[0, 0, : rows.shape[0]] = rows
        return placed.repeat(1, self.stored.heads, 1, 1).to(self.device)

    def placed_mask(self) -> torch.Tensor:
        """The mask that is added to the scores: the stored mask (0 without one) where a row sees a key, else -inf."""
        arrays = self.stored.arrays
        keys = arrays["k"].shape[0]
        row_mask = arrays.get("mask", torch.ones(arrays["q"].shape[0], keys, dtype=torch.bool))
        if row_mask.dtype == torch.bool:  # True: visible
            row_mask = torch.zeros(row_mask.shape, dtype=arrays["q"].dtype).masked_fill(~row_mask, -math.inf)
        placed = torch.zeros(1, self.stored.heads, self.queries, self.keys, dtype=row_mask.dtype)
        placed[0, self.head_of_row, self.query_of_row, keys:] = -math.inf
        seen = torch.arange(keys) < arrays["key_limit"].long()[:, None]
        if "key_begin" in arrays:
            seen &= torch.arange(keys) >= arrays["key_begin"].long()[:, None]
        placed[0, self.head_of_row, self.query_of_row, :keys] = row_mask.masked_fill(~seen, -math.inf)
        return placed

    def arguments(self, operation) -> dict:
        """The arguments for `operation`, an aten operation: of the values below, those whose names its schema has."""
        values = {
            "query": self.query,
            "key": self.key,
            "value": self.value,
            "attn_mask": self.mask,
            "attn_bias": self.mask,
            "dropout_p": 0.0,
            "is_causal": self.causal,
            "compute_log_sumexp": True,
            "scale": float(self.stored.facts["scale"]),
        }
        names = {argument.name for argument in operation._schema.arguments}
        if self.mask is not None and not names & {"attn_mask", "attn_bias"}:
            raise SliceError(f"{operation} takes no mask, and these rows need one, so it cannot be run on them")
        return {name: value for name, value in values.items() if name in names}
