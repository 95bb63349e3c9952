"""The spectrum of an increment of W_Q W_K^T, beside numpy's SVD of the whole product."""

import os
import pathlib
import struct
import subprocess

import numpy as np
import pytest

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("FORESHOCK_BUILD", ROOT / "build" / "release")) / "bin" / "spectrum_program"

Head = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def spectra(heads: list[Head]) -> list[tuple[float, ...] | None]:
    parts = [
        struct.pack("<QQ", *head[0].shape) + b"".join(m.astype(np.float64).tobytes() for m in head) for head in heads
    ]
    done = subprocess.run([PROGRAM], input=b"".join(parts), capture_output=True, check=True, timeout=300)
    lines = done.stdout.decode().splitlines()
    assert len(lines) == len(heads)
    return [None if line == "none" else tuple(map(float, line.split())) for line in lines]


def expected(head: Head) -> tuple[float, float, float]:
    """By the definition: the width x width product, all of its singular values."""
    query, query_after, key, key_after = (m.astype(np.float64) for m in head)
    values = np.linalg.svd((query_after - query).T @ key + query.T @ (key_after - key), compute_uv=False)
    squares = values**2
    p = squares[squares > 0] / squares.sum()
    return float(np.sqrt(squares.sum())), float(squares.sum() / squares.max()), float(np.exp(-(p * np.log(p)).sum()))


def weights(generator: np.random.Generator, head_dim: int, width: int, change: float, rank: int | None = None) -> Head:
    def pair() -> tuple[np.ndarray, np.ndarray]:
        before = generator.normal(0, 0.02, (head_dim, width)).astype(np.float32)
        if rank is None:
            step = generator.normal(0, change, (head_dim, width))
        else:
            step = generator.normal(0, change, (head_dim, rank)) @ generator.normal(0, 1, (rank, width))
        return before, (before + step).astype(np.float32)

    return (*pair(), *pair())


SHAPES = [(1, 1), (1, 7), (4, 4), (16, 24), (16, 32), (32, 256), (64, 512), (64, 100)]


@pytest.mark.parametrize("change", [1e-2, 1e-5])
@pytest.mark.parametrize("rank", [None, 1, 3])
def test_as_numpy_on_the_full_product(change, rank):
    """To 1e-8. The change of fp32 weights is exact in fp64, and neither way loses more than some 1e-13 of the largest
    singular value; p ln p of a value that small is nothing."""
    generator = np.random.default_rng(int(1 / change) + (rank or 0))
    heads = [weights(generator, *shape, change, rank) for shape in SHAPES]
    for shape, head, found in zip(SHAPES, heads, spectra(heads), strict=True):
        assert found == pytest.approx(expected(head), rel=1e-8), shape


def test_what_a_rank_means():
    """A change of the query by a matrix of orthogonal rows, with keys that are orthogonal: the increment has head_dim
    equal singular values."""
    head_dim, width = 8, 64
    basis = np.linalg.qr(np.random.default_rng(5).normal(size=(width, 2 * head_dim)))[0].T
    zeros, key = np.zeros((head_dim, width)), 3 * basis[:head_dim]
    found = spectra([(zeros, 2 * basis[head_dim:], key, key)])[0]
    assert found == pytest.approx((6 * np.sqrt(head_dim), head_dim, head_dim), rel=1e-12)
    one = np.zeros((head_dim, width))
    one[3] = basis[-1]
    assert spectra([(zeros, one, key, key)])[0] == pytest.approx((3, 1, 1), rel=1e-12)


def test_nothing_is_said_of_nothing():
    head = weights(np.random.default_rng(1), 4, 16, 1e-3)
    still = (head[0], head[0], head[2], head[2])
    broken = (head[0], np.where(np.eye(4, 16) > 0, np.nan, head[1]), head[2], head[3])
    infinite = (head[0], head[1], head[2] * np.inf, head[3])
    assert spectra([still, broken, infinite]) == [None, None, None]


def test_ranks_do_not_depend_on_the_scale():
    """Down to where the squares of singular values are below the smallest number."""
    head = weights(np.random.default_rng(1), 4, 16, 1e-3)
    found = spectra([tuple(m.astype(np.float64) * 1e-100 for m in head)])[0]
    assert found[1:] == pytest.approx(expected(head)[1:], rel=1e-8)
    assert found[0] == pytest.approx(expected(head)[0] * 1e-200, rel=1e-8)
