#include "lab/inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/variations.h"

namespace foreshock::lab {
namespace {

const NumberFormat kFp64 = *parse_format("fp64");
const NumberFormat kBf16 = *parse_format("bf16");

Tensors inputs(const char* law, uint64_t seed, const NumberFormat& format = kFp64) {
  return make_inputs({Family::kAttention, 100, 300, 64}, *parse_input_law(law), 1, seed, format);
}

// Mean of n = 19200 draws against the law's, within 5 standard errors.
TEST(Inputs, DistributionsHaveTheirMoments) {
  const auto moments = [](const Tensor& x) {
    double mean = 0, square = 0;
    for (double v : x.data) mean += v / x.data.size(), square += v * v / x.data.size();
    return std::pair(mean, square - mean * mean);
  };
  const double n = 19200;
  const auto [normal_mean, normal_variance] = moments(inputs("normal", 1).at("key"));
  EXPECT_NEAR(normal_mean, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(normal_variance, 1, 5 * std::sqrt(2 / n));
  const auto [uniform_mean, uniform_variance] = moments(inputs("uniform", 1).at("key"));
  EXPECT_NEAR(uniform_mean, 0.5, 5 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(uniform_variance, 1.0 / 12, 0.005);
  // Variance 1 + 0.1; its own spread comes from the fourth moment of the rare outliers: 3 * 100^2 * 0.001.
  EXPECT_NEAR(moments(inputs("outlier", 1).at("key")).second, 1.1, 5 * std::sqrt(33 / n));
  const Tensor one_signed = inputs("one_signed", 1).at("value");
  for (double v : one_signed.data) EXPECT_TRUE(v <= -0.5 && v > -1.5);
}

TEST(Inputs, DependOnlyOnTheSeed) {
  EXPECT_EQ(inputs("normal", 3).at("query").data, inputs("normal", 3).at("query").data);
  EXPECT_NE(inputs("normal", 3).at("query").data, inputs("normal", 4).at("query").data);
  const Tensor exact = inputs("normal", 3).at("value"), rounded = inputs("normal", 3, kBf16).at("value");
  for (size_t i = 0; i < exact.data.size(); ++i)
    EXPECT_LE(std::fabs(rounded.data[i] - exact.data[i]), kBf16.ulp(exact.data[i]) / 2);
}

// Scores of each row, in nats: T at the top, or one at the top and the rest the gap below it; the others
// weigh 2e-4 together (within the spread of their 0.25-sd noise, whose mean factor is e^(1/32)).
TEST(Inputs, HaveTiesAtTheRequestedPlaces) {
  FORESHOCK_SKIP_IF_SANITIZED();
  for (const auto& [law, ties, gap] : {std::tuple{"ties:3", 3, 0.0}, {"ties:4:1.9e-3", 4, 1.9e-3}}) {
    const Tensors x = inputs(law, 5, kBf16);
    for (int i = 0; i < 64; ++i) {
      std::vector<double> scores(300, 0);
      for (int j = 0; j < 300; ++j)
        for (int c = 0; c < 64; ++c) scores[j] += x.at("query").at(i, c) * x.at("key").at(j, c) / 8;
      std::sort(scores.rbegin(), scores.rend());
      for (int t = 1; t < ties; ++t) EXPECT_NEAR(scores[0] - scores[t], gap, gap * kBf16.unit_roundoff());
      double residue = 0;
      for (int j = ties; j < 300; ++j) residue += std::exp(scores[j] - scores[0]);
      EXPECT_NEAR(residue, 2e-4, 0.5e-4);
    }
  }
}

TEST(Inputs, RefuseUnknownDistributions) {
  for (const char* text : {"", "gauss", "ties", "ties:0", "ties:2:", "ties:2:2", "ties:2:0.1x", "ties:x"})
    EXPECT_FALSE(parse_input_law(text)) << text;
}

}  // namespace
}  // namespace foreshock::lab
