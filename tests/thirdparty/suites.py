"""The third-party test suites that run.py runs: source packages of the registry that carry their tests."""

from __future__ import annotations

from typing import NamedTuple


class Suite(NamedTuple):
    package: str  # name in the registry
    version: str
    tests: tuple[str, ...]  # paths in the source package
    leave_out: tuple[str, ...] = ()  # paths and names of tests that need a network, a device or minutes
    select: str = ""  # pytest's -k
    environment: tuple[tuple[str, str], ...] = ()


# The tests of accelerate that read models from a hub, start other programs or take minutes are left out.
SUITES = (
    Suite(
        "torchzero",
        "0.4.4",
        ("tests/test_module.py", "tests/test_objective.py", "tests/test_tensorlist.py", "tests/test_utils_optimizer.py",
         "tests/test_identical.py"),
    ),
    Suite(
        "pytorch_optimizer",
        "4.1.0",
        ("tests/test_optimizers.py", "tests/test_general_optimizer_parameters.py", "tests/test_optimizer_parameters.py",
         "tests/test_gradients.py", "tests/test_loss_functions.py", "tests/test_lr_schedulers.py",
         "tests/test_wrapper_optimizers.py", "tests/test_optimizer_variants.py", "tests/test_create_optimizer.py"),
    ),
    Suite(
        "accelerate",
        "1.15.0",
        ("tests/test_optimizer.py", "tests/test_scheduler.py", "tests/test_hooks.py", "tests/test_dataclasses.py",
         "tests/test_kwargs_handlers.py", "tests/test_memory_utils.py", "tests/test_modeling_utils.py",
         "tests/test_data_loader.py", "tests/test_accelerator.py", "tests/test_offload.py", "tests/test_utils.py"),
    ),
    Suite("einops", "0.8.2", ("einops/tests",), environment=(("EINOPS_TEST_BACKENDS", "numpy,torch"),)),
    Suite("skorch", "1.4.0", ("skorch/tests/test_utils.py", "skorch/tests/test_net.py", "skorch/tests/test_dataset.py",
                              "skorch/tests/test_toy.py", "skorch/tests/test_regressor.py"),
          leave_out=("parallel", "multiprocessing")),
    Suite("linear_operator", "0.6.1", ("test/operators/test_dense_linear_operator.py",
                                       "test/operators/test_diag_linear_operator.py",
                                       "test/operators/test_kronecker_product_linear_operator.py")),
    Suite("torch_optimizer", "0.3.0", ("tests",)),
)  # fmt: skip

# Programs of this folder whose output is to be the same, bit for bit.
PROGRAMS = ("torchzero_training.py",)

# What the suites import beside torch and the packages themselves. Installed without the packages' own requirements, so
# that torch stays the one of .venv.
REQUIRES = (
    "huggingface_hub", "jaxtyping", "mpmath", "numpy", "parameterized", "psutil", "pyyaml", "pytorch_ranger",
    "safetensors", "scikit-learn", "scipy", "tabulate", "tqdm", "wadler-lindig",
)  # fmt: skip
