#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/shadow/store_rounded.h"

namespace foreshock {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double value_of(DType type, uint32_t bits) {
  const auto narrow = static_cast<uint16_t>(bits);
  return type == DType::kBf16 ? bf16_to_float(narrow) : fp16_to_float(narrow);
}
uint32_t infinity_of(DType type) { return type == DType::kBf16 ? 0x7f80 : 0x7c00; }

class Rounding16 : public testing::TestWithParam<DType> {};

// All neighbours of the format, and what lies between them: exhaustive, so no other oracle is needed.
TEST_P(Rounding16, NearestAndTiesToEvenBetweenAllNeighbours) {
  const DType type = GetParam();
  for (uint32_t bits = 0; bits + 1 < infinity_of(type); ++bits) {
    const double low = value_of(type, bits), high = value_of(type, bits + 1);
    const double middle = (low + high) / 2;
    ASSERT_EQ(round_to(type, low), low);
    ASSERT_EQ(round_to(type, middle), bits % 2 == 0 ? low : high) << bits;
    ASSERT_EQ(round_to(type, std::nextafter(middle, 0)), low) << bits;
    ASSERT_EQ(round_to(type, std::nextafter(middle, kInfinity)), high) << bits;
    ASSERT_EQ(round_to(type, -middle), bits % 2 == 0 ? -low : -high) << bits;
    ASSERT_EQ(ulp_at(type, low), high - low) << bits;
    ASSERT_EQ(ulp_at(type, -middle), high - low) << bits;
  }
}

TEST_P(Rounding16, OverflowsHalfAnUlpBeyondTheLargest) {
  const DType type = GetParam();
  const double largest = value_of(type, infinity_of(type) - 1);
  const double edge = largest + ulp_at(type, largest) / 2;
  EXPECT_EQ(round_to(type, std::nextafter(edge, 0)), largest);
  EXPECT_EQ(round_to(type, edge), kInfinity);
  EXPECT_EQ(round_to(type, -edge), -kInfinity);
  EXPECT_EQ(round_to(type, 1e308), kInfinity);
  EXPECT_EQ(round_to(type, -kInfinity), -kInfinity);
  EXPECT_TRUE(std::isnan(round_to(type, std::nan(""))));
  EXPECT_TRUE(std::isnan(ulp_at(type, kInfinity)));
  EXPECT_TRUE(std::signbit(round_to(type, -0.0)));
  EXPECT_TRUE(std::signbit(round_to(type, -1e-300)));
}

TEST_P(Rounding16, StoresEveryPatternBack) {
  const DType type = GetParam();
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    uint16_t stored[2] = {0xabcd, 0xabcd};
    store_rounded(type, value_of(type, bits), stored, 1);
    ASSERT_EQ(stored[0], 0xabcd);
    if (std::isnan(value_of(type, bits))) {
      ASSERT_TRUE(std::isnan(value_of(type, stored[1]))) << bits;
    } else {
      ASSERT_EQ(stored[1], bits);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Rounding16, testing::Values(DType::kBf16, DType::kFp16),
                         [](const auto& info) { return name_of(info.param); });

TEST(Rounding, Fp32AgreesWithTheHardware) {
  std::mt19937_64 engine(1);
  std::uniform_real_distribution<double> exponent(-160, 130), fraction(-2, 2);
  for (int i = 0; i < 200000; ++i) {
    const double x = std::ldexp(fraction(engine), static_cast<int>(exponent(engine)));
    ASSERT_EQ(round_to(DType::kFp32, x), static_cast<double>(static_cast<float>(x))) << x;
  }
  EXPECT_EQ(ulp_at(DType::kFp32, 1), 0x1p-23);
  EXPECT_EQ(ulp_at(DType::kFp32, 0), 0x1p-149);
}

TEST(Rounding, Fp64IsLeftAlone) {
  EXPECT_EQ(round_to(DType::kFp64, 1.1), 1.1);
  EXPECT_EQ(ulp_at(DType::kFp64, 1.5), 0x1p-52);
  EXPECT_EQ(ulp_at(DType::kFp64, 0), 0x1p-1074);
}

}  // namespace
}  // namespace foreshock
