#include "detect/robust_z.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace foreshock {
namespace {

std::vector<double> normal_values(size_t count) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> draw(10, 2);
  std::vector<double> values(count);
  for (double& v : values) v = draw(engine);
  return values;
}

// Median and spread of 256 normal values are known to about 1.25 / 16 and 1.17 / 16 standard deviations.
TEST(RobustZ, IsTheUsualZOnNormalValues) {
  const auto values = normal_values(256);
  EXPECT_NEAR(*robust_z(values.data(), values.size(), 10 + 5 * 2), 5, 5 * 0.25);
  EXPECT_NEAR(*robust_z(values.data(), values.size(), 10), 0, 0.25);
}

TEST(RobustZ, AFewWildValuesDoNotMatter) {
  auto values = normal_values(200);
  const double before = *robust_z(values.data(), values.size(), 20);
  for (int i = 0; i < 10; ++i) values[i] = 1e12;
  EXPECT_NEAR(*robust_z(values.data(), values.size(), 20), before, 0.5);
}

TEST(RobustZ, ByHand) {
  std::vector<double> values;
  for (int i = 1; i <= 17; ++i) values.push_back(i);  // median 9, deviations 0, 1, 1, ..., 8, 8: median 4
  EXPECT_DOUBLE_EQ(*robust_z(values.data(), 17, 17), 8 / (1.4826 * 4));
  values.pop_back();  // median 8.5, deviations 0.5, 0.5, ..., 7.5: median 4
  EXPECT_DOUBLE_EQ(*robust_z(values.data(), 16, 16.5), 8 / (1.4826 * 4));
}

TEST(RobustZ, AbsentWhereItMeansNothing) {
  const auto values = normal_values(100);
  EXPECT_FALSE(robust_z(values.data(), 15, 1).has_value());
  EXPECT_FALSE(robust_z(values.data(), 100, std::nan("")).has_value());
  EXPECT_FALSE(robust_z(values.data(), 100, INFINITY).has_value());
  const std::vector<double> constant(100, 3.0);
  EXPECT_FALSE(robust_z(constant.data(), 100, 4).has_value());
}

}  // namespace
}  // namespace foreshock
