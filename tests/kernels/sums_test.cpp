#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/sums.h"

namespace foreshock {
namespace {

TEST(GradientSums, AreOfTheFiniteElements) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> g(1000, 2.f);
  g[3] = std::nanf(""), g[500] = kInfinity, g[999] = -kInfinity;
  GradientSums sums{.squares = 1, .finite = 2, .nonfinite = 3};  // added to
  add_gradient_sums(
      {.data = g.data(), .dtype = DType::kFp32, .shape = {1, 1, 10, 100}, .stride = {0, 0, 100, 1}}, &sums);
  EXPECT_EQ(sums.squares, 1 + 4.0 * 997);
  EXPECT_EQ(sums.finite, 2u + 997);
  EXPECT_EQ(sums.nonfinite, 3u + 3);
}

TEST(GradientSums, OfEverySecondColumn) {
  std::vector<double> g(24, 1e300);  // would overflow
  for (size_t n = 0; n < g.size(); n += 2) g[n] = static_cast<double>(n);
  GradientSums sums;
  add_gradient_sums({.data = g.data(), .dtype = DType::kFp64, .shape = {1, 1, 3, 4}, .stride = {0, 0, 8, 2}},
                    &sums);
  EXPECT_EQ(sums.squares, 4 * (11.0 * 12 * 23 / 6));  // 4 times the squares of 0 to 11
  EXPECT_EQ(sums.finite, 12u);
  EXPECT_EQ(sums.nonfinite, 0u);
}

}  // namespace
}  // namespace foreshock
