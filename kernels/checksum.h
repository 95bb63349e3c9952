// A checksum of a packed array that any changed bit changes. No heap, no statics: safe inside a trainer.
#ifndef FORESHOCK_KERNELS_CHECKSUM_H_
#define FORESHOCK_KERNELS_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

namespace foreshock {

// The sum modulo 2^64 over the 32-bit words w[n] of `bytes` bytes (the last one filled up with zeros) of
// w[n] * m[n], m[n] = 2 * (n * 0x9e3779b1 mod 2^31) + 1. A sum, so in any order and grouping; every factor is
// odd and below 2^32, so a change of one word always shows, and one bit in each of two words too, since no
// two factors are equal below 2^31 words.
uint64_t checksum(const void* data, size_t bytes);

// m[n].
constexpr uint32_t checksum_factor(uint64_t n) { return static_cast<uint32_t>(n) * 2 * 0x9e3779b1u + 1; }

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_CHECKSUM_H_
