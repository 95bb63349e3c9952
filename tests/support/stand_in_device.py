"""The first import of a training whose CUDA device is memory of the host (host_cuda.cpp) and whose driver, fake_cuda,
is behind the host until the next operation. It must come before torch, which looks for devices when it is imported."""

import ctypes
import os

host_cuda = ctypes.CDLL(os.environ["HOST_CUDA"])
_driver = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
_start, run_all = (getattr(_driver, "_ZN9fake_cuda" + name) for name in ("5startENS_3RunEi", "7run_allEv"))
_start(0, 1)  # Run::kByHand of fake_cuda.h, one device
host_cuda.host_cuda_catch_up(ctypes.cast(run_all, ctypes.c_void_p))
