"""Writes attention calls as safetensors files, with nothing but torch."""

import json
import struct

import torch

NAMES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def write_call(path, tensors, **metadata):
    header, data = {"__metadata__": {key: str(value) for key, value in metadata.items()}}, b""
    for name, tensor in tensors.items():
        raw = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def attention_call(batch=2, heads=4, kv_heads=4, queries=64, keys=64, d=64, dtype=torch.bfloat16, causal=False, seed=1):
    """Inputs and what torch's own attention makes of them, forward and backward."""
    torch.manual_seed(seed)
    q = torch.randn(batch, heads, queries, d).to(dtype).requires_grad_()
    k, v = (torch.randn(batch, kv_heads, keys, d).to(dtype).requires_grad_() for _ in range(2))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads)
    dout = torch.randn_like(out)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), dout)
    return {"q": q, "k": k, "v": v, "out": out, "dout": dout, "dq": dq, "dk": dk, "dv": dv}
