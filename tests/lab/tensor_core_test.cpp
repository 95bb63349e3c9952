#include "lab/tensor_core.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lab/inputs.h"
#include "lab/product.h"
#include "lab/rounding.h"
#include "tests/lab/every_target.h"

namespace foreshock::lab {
namespace {

Tensor random_tensor(int rows, int cols, const NumberFormat& format, double log2_spread, uint64_t seed) {
  Tensor x(rows, cols);
  for (size_t i = 0; i < x.data.size(); ++i)
    x.data[i] = normal(seed, i) * std::exp2(log2_spread * normal(seed + 1000, i));
  for (size_t i = 0; i < x.data.size(); i += 17) x.data[i] = 0;
  round_to(format, Rounding::kNearestEven, x.data.data(), x.data.size());
  return x;
}

struct Case {
  const char* accumulator;
  const char* format;
};

class TensorCore : public testing::TestWithParam<Case> {};

TEST_P(TensorCore, VectorCodeMatchesTheScalarModel) {
  const NumberFormat format = *parse_format(GetParam().format);
  const Accumulator unit = for_operands(*parse_accumulator(GetParam().accumulator), format);
  int64_t dots = 0, mismatches = 0;
  for (int depth : {1, 64, 128, 200}) {
    const Tensor a = random_tensor(161, depth, format, 3, depth),
                 b = random_tensor(depth, 163, format, 1, 2 + depth);
    Tensor c(a.rows, b.cols);
    for (size_t i = 0; i < c.data.size(); ++i) c.data[i] = i % 5 ? static_cast<float>(normal(5, i)) : 0.0f;
    Tensor fast = c;
    tensor_core_multiply_add(unit, format, a, b, fast);
    for (int i = 0; i < c.rows; ++i)
      for (int j = 0; j < c.cols; ++j, ++dots)
        mismatches +=
            fast.at(i, j) != tensor_core_dot(unit, format, a.row(i), &b.data[j], b.cols, depth, c.at(i, j));
  }
  EXPECT_GE(dots, 100'000);
  EXPECT_EQ(mismatches, 0);
}

INSTANTIATE_TEST_SUITE_P(Units, TensorCore,
                         testing::Values(Case{"ampere", "bf16"}, Case{"ampere", "fp16"},
                                         Case{"ampere", "tf32"}, Case{"hopper", "bf16"},
                                         Case{"hopper", "fp32"}, Case{"hopper_fp8", "e4m3"},
                                         Case{"hopper_fp8_promoted", "e5m2"}, Case{"blackwell_fp8", "e4m3"}),
                         [](const auto& info) {
                           return std::string(info.param.accumulator) + "_" + info.param.format;
                         });

TEST(TensorCoreModel, EveryInstructionSetGivesTheSameBits) {
  for (const char* name : {"ampere", "hopper_fp8_promoted"}) {
    const Accumulator unit = *parse_accumulator(name);
    const NumberFormat format = *parse_format(unit.fp8_only ? "e4m3" : "bf16");
    const Tensor a = random_tensor(33, 150, format, 3, 1), b = random_tensor(150, 35, format, 3, 2);
    on_every_target([&] {
      Tensor c(a.rows, b.cols);
      tensor_core_multiply_add(unit, format, a, b, c);
      for (int i = 0; i < c.rows; ++i)
        for (int j = 0; j < c.cols; ++j)
          ASSERT_EQ(c.at(i, j), tensor_core_dot(unit, format, a.row(i), &b.data[j], b.cols, a.cols, 0));
    });
  }
}

// Worked by hand: products 2^0 and 2^-25 with F = 24 are aligned to 2^0, the second is cut off; F = 25 keeps
// it until the sum is cut to 23 fraction bits.
TEST(TensorCoreModel, AlignsCutsAndCutsAgain) {
  const NumberFormat bf16 = *parse_format("bf16");
  const double a[] = {1, 0x1p-25, 0x1p-25, -0x1p-25}, ones[] = {1, 1, 1, 1};
  const Accumulator ampere = *parse_accumulator("ampere"), hopper = *parse_accumulator("hopper");
  EXPECT_EQ(tensor_core_dot(ampere, bf16, a, ones, 1, 4, 0), 1);
  EXPECT_EQ(tensor_core_dot(hopper, bf16, a, ones, 1, 4, 0), 1);
  const double b[] = {1, 0x1p-24, 0x1p-24, 0};  // their sum reaches the last fraction bit of fp32
  EXPECT_EQ(tensor_core_dot(ampere, bf16, b, ones, 1, 4, 0), 1 + 0x1p-23);
  const double c[] = {-1, 0x1p-26, 0, 0};  // towards zero: cutting 2^-26 leaves -1, no borrow
  EXPECT_EQ(tensor_core_dot(hopper, bf16, c, ones, 1, 4, 0), -1);
}

TEST(TensorCoreModel, NonFiniteOperandsFollowIeee) {
  const NumberFormat bf16 = *parse_format("bf16");
  const Accumulator hopper = *parse_accumulator("hopper");
  Tensor a(1, 2, 1.0), b(2, 1, 1.0), c(1, 1);
  a.at(0, 0) = INFINITY;
  tensor_core_multiply_add(hopper, bf16, a, b, c);
  EXPECT_EQ(c.at(0, 0), INFINITY);
  b.at(1, 0) = -INFINITY;
  c.at(0, 0) = 0;
  tensor_core_multiply_add(hopper, bf16, a, b, c);
  EXPECT_TRUE(std::isnan(c.at(0, 0)));
}

double relative_error(const char* accumulator, const char* format_name) {
  const NumberFormat format = *parse_format(format_name);
  const Tensor a = random_tensor(64, 128, format, 0, 1), b = random_tensor(128, 64, format, 0, 2);
  const Tensor c = multiply(*parse_accumulator(accumulator), format, a, b);
  const Tensor exact = multiply(*parse_accumulator("exact"), format, a, b);
  double error = 0, norm = 0;
  for (size_t i = 0; i < c.data.size(); ++i) {
    error += (c.data[i] - exact.data[i]) * (c.data[i] - exact.data[i]);
    norm += exact.data[i] * exact.data[i];
  }
  return std::sqrt(error / norm);
}

// Depth 128. Measured: Ampere 2.7e-7, Hopper 1.8e-7, Hopper fp8 2.8e-4, Blackwell fp8 5.5e-8; bounds a factor
// 2 wide.
TEST(TensorCoreModel, ErrorsHaveTheKnownSizes) {
  const double ampere = relative_error("ampere", "bf16"), hopper = relative_error("hopper", "bf16");
  EXPECT_LT(hopper, ampere);
  EXPECT_LT(ampere, 6e-7);
  const double hopper_fp8 = relative_error("hopper_fp8", "e4m3");
  EXPECT_GT(hopper_fp8, 1e-4);
  EXPECT_LT(hopper_fp8, 6e-4);
  EXPECT_LT(relative_error("hopper_fp8_promoted", "e4m3"), 1.01 * hopper_fp8);
  EXPECT_LT(relative_error("blackwell_fp8", "e4m3"), 2e-7);
}

}  // namespace
}  // namespace foreshock::lab
