// Packs numbers into arrays of a storage format, for the tests of shadow/.
#ifndef FORESHOCK_TESTS_SHADOW_STORE_ROUNDED_H_
#define FORESHOCK_TESTS_SHADOW_STORE_ROUNDED_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"

namespace foreshock {

inline uint16_t narrow_bits(DType type, double rounded) {
  if (type == DType::kBf16) {
    // Sets a fraction bit of NaN, since cutting the low payload bits off could leave an infinity.
    const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(rounded));
    return static_cast<uint16_t>(bits >> 16 | (std::isnan(rounded) ? 0x40u : 0u));
  }
  const uint16_t sign = std::signbit(rounded) ? 0x8000 : 0;
  const double magnitude = std::fabs(rounded);
  if (std::isnan(rounded)) return sign | 0x7e00;
  if (std::isinf(rounded)) return sign | 0x7c00;
  if (magnitude < 0x1p-14) return sign | static_cast<uint16_t>(magnitude * 0x1p24);
  const int exponent = std::ilogb(magnitude);
  const auto fraction = static_cast<uint16_t>(std::ldexp(magnitude, 10 - exponent) - 1024);
  return sign | static_cast<uint16_t>((exponent + 15) << 10) | fraction;
}

// Stores round_to(type, x) as element `index` of a packed array. Not inlined: gcc 12 would report a store of
// eight bytes into an array of two, on a path that the type excludes (-Warray-bounds).
[[gnu::noinline]] inline void store_rounded(DType type, double x, void* data, size_t index) {
  char* at = static_cast<char*>(data) + index * size_of(type);
  const double rounded = round_to(type, x);
  if (type == DType::kFp64) {
    std::memcpy(at, &rounded, sizeof rounded);
  } else if (type == DType::kFp32) {
    const auto narrow = static_cast<float>(rounded);
    std::memcpy(at, &narrow, sizeof narrow);
  } else {
    const uint16_t bits = narrow_bits(type, rounded);
    std::memcpy(at, &bits, sizeof bits);
  }
}

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_SHADOW_STORE_ROUNDED_H_
