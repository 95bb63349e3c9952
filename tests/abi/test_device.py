"""The driver of a device is opened when a tensor lies on one, and not before."""

import pathlib
import subprocess

import monitored
import native
import pytest
from segment_file import assert_calls_conserved, segments

SOURCE = str(pathlib.Path(__file__).resolve().parent / "device.c")
FAKE_DRIVER = monitored.BUILD / "lib" / "fake_cuda"
CPU, CUDA, OTHER = "0", "1", "2"


@pytest.mark.parametrize(
    ("where", "has_driver", "mapped", "reasons"),
    # The first sampled call on a device comes before the driver is opened, at the end of its step.
    [
        (CPU, True, 0, {}),
        (CUDA, True, 1, {"set_up": 1, "device": 2}),
        (CUDA, False, 0, {"set_up": 1, "device": 2}),
        (OTHER, True, 0, {"device": 3}),
    ],
)
def test_only_a_tensor_on_a_device_opens_its_driver(where, has_driver, mapped, reasons, library, compile_c, base):
    if has_driver:
        assert (FAKE_DRIVER / "libcuda.so.1").exists()
    program = compile_c("device", SOURCE, *native.LINKED)
    (base / "run").mkdir(mode=0o700)
    environment = {"FORESHOCK_DIR": str(base), "FORESHOCK_RUN_ID": "run", "FORESHOCK_EVERY": "1"}
    environment |= {"FORESHOCK_MAX_SLOWDOWN": "100%"}
    # An empty folder first, so that a driver of this machine is not what is found or missed.
    environment |= {"LD_LIBRARY_PATH": str(FAKE_DRIVER if has_driver else base)}
    done = subprocess.run(
        [program, where], env=monitored.clean_environment(**environment), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    if not has_driver and "driver 1" in done.stdout:
        pytest.skip("this machine has a driver of its own")
    assert done.stdout == f"described 4\ndriver {mapped}\n"
    (segment,) = segments(base / "run")
    attention = segment.attention()
    assert_calls_conserved(attention)
    forward = attention["forward"]
    assert forward["calls"] == 4
    # No context is current in this trainer, so with a driver too nothing can be sampled.
    assert forward["sampled"] == (0 if reasons else 3)
    assert {name: count for name, count in forward["skipped"].items() if count} == reasons
