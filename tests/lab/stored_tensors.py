"""Writes safetensors files with nothing but numpy: bf16 is kept as the 16-bit patterns it is made of."""

import json
import pathlib
import struct

import numpy as np

Stored = tuple[str, tuple[int, ...], bytes]


def bf16(values: np.ndarray) -> Stored:
    """Rounded to nearest, ties away: finite values only."""
    patterns = ((values.astype(np.float32).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
    return "BF16", values.shape, patterns.tobytes()


def fp16(values: np.ndarray) -> Stored:
    return "F16", values.shape, values.astype(np.float16).tobytes()


def fp32(values: np.ndarray) -> Stored:
    return "F32", values.shape, values.astype(np.float32).tobytes()


def fp64(values: np.ndarray) -> Stored:
    return "F64", values.shape, values.astype(np.float64).tobytes()


def read_back(stored: Stored) -> np.ndarray:
    """What the stored values are, in fp64."""
    kind, shape, data = stored
    if kind == "BF16":
        values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(data, {"F16": np.float16, "F32": np.float32, "F64": np.float64}[kind])
    return values.astype(np.float64).reshape(shape)


def header_of(tensors: dict[str, Stored]) -> dict:
    header, offset = {}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    return header


def write_raw(path: pathlib.Path, header: str, data: bytes) -> pathlib.Path:
    path.write_bytes(struct.pack("<Q", len(header.encode())) + header.encode() + data)
    return path


def write(path: pathlib.Path, tensors: dict[str, Stored]) -> pathlib.Path:
    return write_raw(path, json.dumps(header_of(tensors)), b"".join(data for _, _, data in tensors.values()))


def write_sharded(directory: pathlib.Path, shards: list[dict[str, Stored]]) -> pathlib.Path:
    """The shards and their index; returns the index."""
    directory.mkdir(exist_ok=True)
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write(directory / name, tensors)
        weight_map |= dict.fromkeys(tensors, name)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))
    return index


def write_sparse(path: pathlib.Path, count: int) -> pathlib.Path:
    """One bf16 tensor of `count` zeros that takes no room on the disk."""
    text = json.dumps({"w": {"dtype": "BF16", "shape": [count], "data_offsets": [0, 2 * count]}}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + 2 * count)
    return path
