#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/sums.h"

namespace foreshock {
namespace {

class SumOfSquares : public testing::TestWithParam<size_t> {};

// Against long double, for lengths around the number of chains. Bound: each chain adds n/8 terms, so the
// relative error is at most (n / 8 + 8) * 2^-53 (all terms are positive).
TEST_P(SumOfSquares, AgreesWithLongDouble) {
  const size_t count = GetParam();
  std::mt19937_64 random(count);
  std::normal_distribution<double> normal;
  std::vector<double> fp64(count);
  std::vector<float> fp32(count);
  std::vector<uint16_t> bf16(count);
  long double exact64 = 0, exact32 = 0, exact16 = 0;
  for (size_t n = 0; n < count; ++n) {
    fp64[n] = normal(random);
    fp32[n] = static_cast<float>(fp64[n]);
    bf16[n] = static_cast<uint16_t>(std::bit_cast<uint32_t>(fp32[n]) >> 16);
    exact64 += static_cast<long double>(fp64[n]) * fp64[n];
    exact32 += static_cast<long double>(fp32[n]) * fp32[n];
    exact16 += static_cast<long double>(bf16_to_float(bf16[n])) * bf16_to_float(bf16[n]);
  }
  const double bound = (static_cast<double>(count) / 8 + 8) * 0x1p-53;
  const auto expect_near = [&](double got, long double exact) {
    EXPECT_LE(std::fabs(static_cast<double>(got - exact)), bound * static_cast<double>(exact)) << count;
  };
  expect_near(sum_of_squares(fp64.data(), DType::kFp64, count), exact64);
  expect_near(sum_of_squares(fp32.data(), DType::kFp32, count), exact32);
  expect_near(sum_of_squares(bf16.data(), DType::kBf16, count), exact16);
}

INSTANTIATE_TEST_SUITE_P(Lengths, SumOfSquares, testing::Values(0, 1, 7, 8, 9, 15, 16, 1000, 100003));

TEST(SumOfSquares, NonFiniteValuesAreNotHidden) {
  for (size_t at : {size_t{0}, size_t{5}, size_t{16}}) {
    std::vector<float> values(17, 1.f);
    values[at] = NAN;
    EXPECT_TRUE(std::isnan(sum_of_squares(values.data(), DType::kFp32, values.size())));
    values[at] = -INFINITY;
    EXPECT_TRUE(std::isinf(sum_of_squares(values.data(), DType::kFp32, values.size())));
  }
}

}  // namespace
}  // namespace foreshock
