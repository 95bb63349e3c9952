"""Tests an adapter, the library that hooks the attention operations of one torch version, with this Python's torch.
build_adapter.py runs this program in a child process in which the core library, libforeshock.so, is preloaded.

    python self_test.py ADAPTER

Runs attention forward and backward on a small CPU tensor, before and after the adapter hooks the operations. The hooks
must see each operation once, and the results must be equal bit for bit. Exits 1 with the check that failed, or 0.
"""

from __future__ import annotations

import ctypes
import sys


def attention(torch):  # noqa: ANN001, ANN201 (torch is imported late)
    """Computes attention of fixed tensors. Returns the output and the gradients of query, key and value."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 2, 8, 16, generator=generator, requires_grad=True) for _ in range(3)]
    out = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
    out.square().sum().backward()
    return [out.detach(), *(tensor.grad for tensor in tensors)]


def main() -> str | None:
    import torch

    if not hasattr(ctypes.CDLL(None), "foreshock_abi_version"):
        return "error: the core library is not preloaded"
    plain_results = attention(torch)
    adapter = ctypes.CDLL(sys.argv[1])
    operations = adapter.foreshock_adapter_start()  # the number of hooked operations: at least forward and backward
    if operations < 2:
        return f"error: only {operations} attention operations could be hooked"
    if adapter.foreshock_adapter_start() != operations:
        return "error: starting twice hooked twice"
    adapter.foreshock_adapter_calls.restype = ctypes.c_uint64
    hooked_results = attention(torch)
    seen = [adapter.foreshock_adapter_calls(backward) for backward in (0, 1)]
    if seen != [1, 1]:
        return f"error: one forward and one backward call were seen as {seen[0]} and {seen[1]}"
    if not all(torch.equal(plain, hooked) for plain, hooked in zip(plain_results, hooked_results)):
        return "error: results differ with the hooks in place"
    return None


if __name__ == "__main__":
    problem = main()
    if problem:
        sys.exit(problem)
