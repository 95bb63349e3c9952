#include "shadow/difference.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/shadow/weights.h"

namespace foreshock {
namespace {

using test::Values;

struct Case {
  DType a, b;
  size_t count;
};

class DifferenceOf : public testing::TestWithParam<std::tuple<DType, DType, size_t>> {
 protected:
  DType type_a() const { return std::get<0>(GetParam()); }
  DType type_b() const { return std::get<1>(GetParam()); }
  size_t count() const { return std::get<2>(GetParam()); }

  // Unaligned copies, as files hold them.
  Difference measure(const std::vector<char>& a, const std::vector<char>& b) const {
    std::vector<char> at_a(1), at_b(1);
    at_a.insert(at_a.end(), a.begin(), a.end());
    at_b.insert(at_b.end(), b.begin(), b.end());
    return difference(at_a.data() + 1, type_a(), at_b.data() + 1, type_b(), count());
  }

  // In long double, one after the other. The bound of the header, twice for the square of fp64 values.
  void expect_sums(const Difference& sums, const Values& x, const Values& y) const {
    long double magnitude = 0, squares = 0, of_a = 0;
    double max = 0;
    uint64_t pairs = 0;
    for (size_t n = 0; n < x.size(); ++n) {
      if (!std::isfinite(x[n]) || !std::isfinite(y[n])) continue;
      const double d = std::fabs(y[n] - x[n]);
      ++pairs;
      magnitude += d;
      squares += static_cast<long double>(d) * d;
      of_a += static_cast<long double>(x[n]) * x[n];
      max = std::max(max, d);
    }
    const double bound = (static_cast<double>(x.size()) / 8 + 16) * 0x1p-53;
    EXPECT_EQ(sums.pairs, pairs);
    EXPECT_EQ(sums.non_finite, x.size() - pairs);
    EXPECT_EQ(sums.max_magnitude, max);
    EXPECT_NEAR(sums.sum_magnitude, static_cast<double>(magnitude), bound * static_cast<double>(magnitude));
    EXPECT_NEAR(sums.sum_squares, static_cast<double>(squares), bound * static_cast<double>(squares));
    EXPECT_NEAR(sums.sum_squares_of_a, static_cast<double>(of_a), bound * static_cast<double>(of_a));
  }
};

TEST_P(DifferenceOf, SumsOverPairs) {
  Values x = test::normal(1, count(), 1), y = test::normal(2, count(), 1);
  const std::vector<char> a = test::stored(type_a(), &x), b = test::stored(type_b(), &y);
  expect_sums(measure(a, b), x, y);
}

TEST_P(DifferenceOf, CountsAndLeavesOutNonFinitePairs) {
  Values x = test::normal(3, count(), 1), y = test::normal(4, count(), 1);
  for (size_t n = 0; n < count(); n += 97) x[n] = n % 2 ? NAN : INFINITY;
  for (size_t n = 0; n < count(); n += 101) y[n] = n % 2 ? INFINITY : -INFINITY;
  const std::vector<char> a = test::stored(type_a(), &x), b = test::stored(type_b(), &y);
  expect_sums(measure(a, b), x, y);
}

constexpr DType kTypes[] = {DType::kFp64, DType::kFp32, DType::kBf16, DType::kFp16};
INSTANTIATE_TEST_SUITE_P(FormatsAndLengths, DifferenceOf,
                         testing::Combine(testing::ValuesIn(kTypes), testing::ValuesIn(kTypes),
                                          testing::Values(0, 1, 15, 16, 17, 33, 4096, 10001)));

TEST(Difference, FiguresOfSums) {
  const float a[] = {3, 4, 0}, b[] = {3, 4, 10};
  const Difference sums = difference(a, DType::kFp32, b, DType::kFp32, 3);
  EXPECT_EQ(sums.mean_magnitude(), 10.0 / 3);
  EXPECT_EQ(sums.relative_l2(), 2);
  EXPECT_EQ(sums.max_magnitude, 10);
  const float zero[] = {0, 0, 0};
  EXPECT_TRUE(std::isinf(difference(zero, DType::kFp32, b, DType::kFp32, 3).relative_l2()));
  EXPECT_TRUE(std::isnan(difference(zero, DType::kFp32, zero, DType::kFp32, 3).relative_l2()));
  EXPECT_TRUE(std::isnan(Difference{}.mean_magnitude()));
}

}  // namespace
}  // namespace foreshock
