"""The stored histogram of a tensor, as shadow/histogram.h defines it, from its bits with numpy."""

import numpy

ZERO = 1 << 19  # the bin that begins at +0
INFINITE = 0x7F800000


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def stored(bits: numpy.ndarray) -> bytes:
    """`bits`: of fp32 as 32-bit integers, of bf16 as 16-bit ones."""
    wide = bits.ravel().astype(numpy.int64)
    words = (wide & 0xFFFF) << 16 if bits.dtype == numpy.int16 else wide & 0xFFFFFFFF
    magnitude, negative = words & 0x7FFFFFFF, words >> 31 == 1
    finite = magnitude < INFINITE
    minus_zero = int((negative & (magnitude == 0)).sum())
    nan = int((magnitude > INFINITE).sum())
    plus, minus = (int(((magnitude == INFINITE) & (negative == sign)).sum()) for sign in (False, True))
    negative = negative & (magnitude != 0)
    place = numpy.where(negative, ZERO - 1 - (magnitude >> 12), ZERO + (magnitude >> 12))[finite]
    bins, where, counts = numpy.unique(place, return_inverse=True, return_counts=True)
    residuals = numpy.zeros(len(bins), dtype=numpy.int64)
    numpy.add.at(residuals, where, (magnitude & 0xFFF)[finite])
    out = b"".join(_varint(n) for n in (1, int(finite.sum()), minus_zero, nan, plus, minus, len(bins)))
    before = 0
    for index, count, residual in zip(bins.tolist(), counts.tolist(), residuals.tolist(), strict=True):
        out += _varint(index + 1 - before) + _varint(count) + _varint(residual)
        before = index + 1
    return out


def fnv1a(data: bytes) -> str:
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return f"{digest:016x}"
