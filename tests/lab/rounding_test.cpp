#include "lab/rounding.h"

#include <gtest/gtest.h>
#include <mpfr.h>

#include <cmath>

#include "lab/inputs.h"
#include "tests/lab/every_target.h"
#include "tests/lab/format_samples.h"
#include "tests/support/variations.h"

namespace foreshock::lab {
namespace {

constexpr int kSamples = 1'000'000;

// MPFR's own rounding to the format; only the rule beyond max_finite is added, which MPFR does not have.
double by_mpfr(const NumberFormat& format, mpfr_rnd_t mode, double x) {
  if (!std::isfinite(x)) return round_scalar(format, Rounding::kNearestEven, x);
  // Exponents of MPFR are one larger, and the smallest subnormal sets the lower end.
  mpfr_set_emin(format.min_exponent - format.precision + 2);
  mpfr_set_emax(std::ilogb(format.max_finite) + 1);
  mpfr_t number;
  mpfr_init2(number, format.precision);
  int ternary = mpfr_set_d(number, x, mode);
  ternary = mpfr_check_range(number, ternary, mode);
  mpfr_subnormalize(number, ternary, mode);
  double result = mpfr_get_d(number, mode);
  mpfr_clear(number);
  if (std::fabs(result) <= format.max_finite) return result;
  if (mode == MPFR_RNDZ || format.overflow == Overflow::kSaturate) return std::copysign(format.max_finite, x);
  return format.overflow == Overflow::kNan ? std::nan("") : std::copysign(INFINITY, x);
}

class RoundingOf : public testing::TestWithParam<const char*> {};

TEST_P(RoundingOf, AgreesWithMpfrAndWithItsDefinition) {
  const NumberFormat format = *parse_format(GetParam());
  for (auto [rounding, mode] :
       {std::pair{Rounding::kNearestEven, MPFR_RNDN}, {Rounding::kTowardZero, MPFR_RNDZ}}) {
    const std::vector<double> x = format_samples(format, kSamples / test::kVariationStep, false, 7);
    std::vector<double> fast = x;
    round_to(format, rounding, fast.data(), fast.size());
    int64_t against_mpfr = 0, against_definition = 0, signs = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      against_mpfr += !same(fast[i], by_mpfr(format, mode, x[i]));
      against_definition += !same(fast[i], round_scalar(format, rounding, x[i]));
      signs += !std::isnan(fast[i]) && std::signbit(fast[i]) != std::signbit(x[i]);
    }
    EXPECT_EQ(against_mpfr, 0) << name_of(rounding);
    EXPECT_EQ(against_definition, 0) << name_of(rounding);
    EXPECT_EQ(signs, 0) << name_of(rounding);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, RoundingOf,
                         testing::Values("fp32", "tf32", "bf16", "fp16", "e4m3", "e5m2", "e4m3nosat",
                                         "e5m2nosat", "p5e-14:15", "p20e-60:60"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

TEST(Rounding, Fp64IsLeftAlone) {
  double x[] = {0.1, -1e300, 4.9e-324, INFINITY};
  const std::vector<double> before(std::begin(x), std::end(x));
  round_to(*parse_format("fp64"), Rounding::kNearestEven, x, 4);
  EXPECT_EQ(before, std::vector<double>(std::begin(x), std::end(x)));
}

TEST(Rounding, EveryInstructionSetGivesTheSameBits) {
  for (const char* name : {"bf16", "fp32", "e4m3nosat"})
    for (Rounding rounding : {Rounding::kNearestEven, Rounding::kTowardZero, Rounding::kStochastic}) {
      const NumberFormat format = *parse_format(name);
      const std::vector<double> x = format_samples(format, 100'003, false, 17);
      on_every_target([&] {
        std::vector<double> own = x;
        round_to(format, rounding, own.data(), own.size(), 5);
        int64_t mismatches = 0;
        for (size_t i = 0; i < x.size(); ++i)
          mismatches += !same(own[i], round_scalar(format, rounding, x[i], uniform(5, i)));
        EXPECT_EQ(mismatches, 0) << name << " " << name_of(rounding);
      });
    }
}

TEST(Rounding, WritesNothingBeyondOddLengths) {
  const NumberFormat bf16 = *parse_format("bf16");
  for (int count = 0; count < 20; ++count) {
    std::vector<double> x(24, 0.1);
    round_to(bf16, Rounding::kNearestEven, x.data(), count);
    for (int i = 0; i < 24; ++i) EXPECT_EQ(x[i], i < count ? 0.10009765625 : 0.1);
  }
}

// arXiv 2510.04212, section 3.3.2.
TEST(Rounding, MatchesTheExampleOfBiasedRounding) {
  const float fp32 = -4.70399046f;
  double bf16 = fp32;
  round_to(*parse_format("bf16"), Rounding::kNearestEven, &bf16, 1);
  EXPECT_EQ(bf16, -4.71875);
  EXPECT_NEAR(bf16 - fp32, -0.01475954, 5e-9);  // half of the last digit printed in the paper
}

TEST(Rounding, StochasticMatchesTheDefinitionAndIsUnbiased) {
  const NumberFormat bf16 = *parse_format("bf16");
  constexpr uint64_t kKey = 99;
  const std::vector<double> x = format_samples(bf16, kSamples, false, 11);
  std::vector<double> fast = x;
  round_to(bf16, Rounding::kStochastic, fast.data(), fast.size(), kKey);
  int64_t mismatches = 0;
  for (size_t i = 0; i < x.size(); ++i)
    mismatches += !same(fast[i], round_scalar(bf16, Rounding::kStochastic, x[i], uniform(kKey, i)));
  EXPECT_EQ(mismatches, 0);

  // 1 + 0.3 ulp goes up with probability 0.3: the count of n = 10^6 draws has sd sqrt(0.21 n) = 458.
  const double ulp = bf16.ulp(1);
  std::vector<double> draws(kSamples, 1 + 0.3 * ulp);
  round_to(bf16, Rounding::kStochastic, draws.data(), draws.size(), kKey);
  const auto up = std::count(draws.begin(), draws.end(), 1 + ulp);
  EXPECT_NEAR(static_cast<double>(up), 0.3 * kSamples, 5 * 458);
  EXPECT_EQ(up + std::count(draws.begin(), draws.end(), 1.0), kSamples);
}

}  // namespace
}  // namespace foreshock::lab
