#include "kernels/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace foreshock {
namespace {

// The definition of binary16, by arithmetic instead of bits.
double fp16_by_definition(uint16_t bits) {
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

TEST(DType, EveryFp16IsConvertedExactly) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double expected = fp16_by_definition(static_cast<uint16_t>(bits));
    const double actual = fp16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << bits;
    } else {
      EXPECT_EQ(expected, actual) << bits;
      EXPECT_EQ(std::signbit(expected), std::signbit(actual)) << bits;
    }
  }
}

TEST(DType, Bf16IsTheUpperHalfOfAFloat) {
  EXPECT_EQ(bf16_to_float(0x3f80), 1.0f);
  EXPECT_EQ(bf16_to_float(0xc000), -2.0f);
  EXPECT_EQ(bf16_to_float(0x0001), std::ldexp(1.0f, -133));  // the smallest subnormal
  EXPECT_EQ(bf16_to_float(0x7f80), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(bf16_to_float(0x7fc0)));
}

TEST(DType, LoadsFromUnalignedArrays) {
  alignas(8) char bytes[64] = {};
  const float value = 1.5f;
  std::memcpy(bytes + 1 + 4, &value, 4);
  EXPECT_EQ(load_as_double(bytes + 1, DType::kFp32, 1), 1.5);
}

}  // namespace
}  // namespace foreshock
