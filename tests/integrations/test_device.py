"""Attention on a CUDA device, played by memory of the host (tests/support/host_cuda.cpp): what the core is told."""

from __future__ import annotations

LEGACY = 1  # the default stream, as foreshock_attention_call.stream has it

DEVICE = """
import device_attention as device
from device_attention import put, get
def qkv_there(n=16, m=16, h=4, g=4, d=8, b=2, index=0, dtype=torch.float32):
    shapes = [(b, h, n, d), (b, g, m, d), (b, g, m, d)]
    return [put(torch.randn(shape).to(dtype), index).requires_grad_() for shape in shapes]
"""


def test_the_stream_of_a_call(trainer, host_cuda) -> None:
    """That of the tensors' own device on the thread that calls; nothing waits for it, nothing else is asked."""
    rows, waits = trainer(
        f"""{DEVICE}
import threading
def call(index=0):
    sdpa(*qkv_there(index=index))
call()
host_cuda.host_cuda_set_stream(0, ctypes.c_int64(0x7f0000001000)); call()
host_cuda.host_cuda_set_stream(1, ctypes.c_int64(0x7f0000002000)); call(1); call()
thread = threading.Thread(target=call); thread.start(); thread.join()
sdpa(*qkv())
q, k, v = qkv_there(); out = sdpa(q, k, v).sum()
host_cuda.host_cuda_set_stream(0, ctypes.c_int64(0x7f0000003000)); out.backward()
print(json.dumps([events("leave"), host_cuda.host_cuda_waits()]))
""",
        HOST_CUDA=host_cuda,
    )
    one, two = 0x7F0000001000, 0x7F0000002000
    assert [row["stream"] for row in rows] == [LEGACY, one, two, one, LEGACY, 0, one, one]
    assert [row["query"]["device"] for row in rows] == [[1, 0], [1, 0], [1, 1], [1, 0], [1, 0], [0, -1], [1, 0], [1, 0]]
    assert rows[-1]["pass"] == 1  # on autograd's thread, which has taken the stream of the forward call
    assert waits == 0


def test_the_stream_of_a_torch_whose_guard_cannot_tell(trainer, host_cuda) -> None:
    """Then from the C shim of its CUDA library; the guard is asked once and not again."""
    rows, asked = trainer(
        f"""{DEVICE}
host_cuda.host_cuda_guard_tells(0)
for handle in (0, 0x7f0000001000, 0x7f0000002000):
    host_cuda.host_cuda_set_stream(0, ctypes.c_int64(handle)); sdpa(*qkv_there())
print(json.dumps([events("leave"), host_cuda.host_cuda_handles_asked()]))
""",
        HOST_CUDA=host_cuda,
    )
    assert [row["stream"] for row in rows] == [LEGACY, 0x7F0000001000, 0x7F0000002000]
    assert asked <= 1
