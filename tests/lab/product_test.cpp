#include "lab/product.h"

#include <gtest/gtest.h>
#include <mpfr.h>

#include <cmath>

#include "lab/inputs.h"
#include "tests/lab/every_target.h"

namespace foreshock::lab {
namespace {

Tensor random_tensor(int rows, int cols, uint64_t seed) {
  Tensor x(rows, cols);
  for (size_t i = 0; i < x.data.size(); ++i) x.data[i] = static_cast<float>(normal(seed, i));
  return x;
}

// The definition: std::fma over k, in fp32 and in fp64.
void expect_chains(const Tensor& a, const Tensor& b, const Tensor& start, const Tensor& c32,
                   const Tensor& c64) {
  for (int i = 0; i < a.rows; ++i)
    for (int j = 0; j < b.cols; ++j) {
      float narrow = static_cast<float>(start.at(i, j));
      double wide = start.at(i, j);
      for (int k = 0; k < a.cols; ++k) {
        narrow = std::fma(static_cast<float>(a.at(i, k)), static_cast<float>(b.at(k, j)), narrow);
        wide = std::fma(a.at(i, k), b.at(k, j), wide);
      }
      EXPECT_EQ(c32.at(i, j), narrow);
      EXPECT_EQ(c64.at(i, j), wide);
    }
}

TEST(Product, ChainsUseFusedMultiplyAddsInOrder) {
  const NumberFormat fp32 = *parse_format("fp32");
  for (auto [rows, depth, cols] : {std::array{1, 1, 1}, std::array{5, 33, 7}, std::array{9, 64, 65}}) {
    const Tensor a = random_tensor(rows, depth, 1), b = random_tensor(depth, cols, 2);
    Tensor c32 = random_tensor(rows, cols, 3), c64 = c32;
    const Tensor start = c32;
    on_every_target([&] {
      c32 = c64 = start;
      multiply_add(*parse_accumulator("fp32"), fp32, a, b, c32);
      multiply_add(*parse_accumulator("fp64"), fp32, a, b, c64);
      expect_chains(a, b, start, c32, c64);
    });
  }
}

// MPFR with enough bits for every product and sum of doubles in this range, rounded once at the end.
double by_mpfr(const std::vector<double>& a, const std::vector<double>& b, double c) {
  mpfr_set_emin(mpfr_get_emin_min());
  mpfr_set_emax(mpfr_get_emax_max());
  mpfr_t sum, product;
  mpfr_init2(sum, 2000);
  mpfr_init2(product, 200);
  mpfr_set_d(sum, c, MPFR_RNDN);
  for (size_t i = 0; i < a.size(); ++i) {
    mpfr_set_d(product, a[i], MPFR_RNDN);
    mpfr_mul_d(product, product, b[i], MPFR_RNDN);
    mpfr_add(sum, sum, product, MPFR_RNDN);
  }
  const double result = mpfr_get_d(sum, MPFR_RNDN);
  mpfr_clears(sum, product, nullptr);
  return result;
}

TEST(Product, ExactIsTheRealSumRoundedOnce) {
  for (uint64_t round = 0; round < 2000; ++round) {
    const int count = 1 + static_cast<int>(uniform(1, round) * 40);
    std::vector<double> a(count), b(count);
    for (int i = 0; i < count; ++i) {
      a[i] = std::ldexp(normal(round + 10, i), static_cast<int>(60 * normal(round + 20, i)));
      b[i] = normal(round + 30, i);
      if (i % 3 == 2) {  // cancels the last but one almost wholly
        a[i] = -a[i - 1];
        b[i] = std::nextafter(b[i - 1], 1);
      }
    }
    const double c = normal(round + 40, 0);
    EXPECT_EQ(exact_dot(a.data(), b.data(), 1, count, c), by_mpfr(a, b, c)) << round;
  }
}

}  // namespace
}  // namespace foreshock::lab
