#include "lab/algorithm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lab/inputs.h"

namespace foreshock::lab {
namespace {

const NumberFormat kFp64 = *parse_format("fp64");
const NumberFormat kBf16 = *parse_format("bf16");

Tensors run(std::string_view name, const Tensors& inputs, const Settings& settings,
            const NumberFormat& format) {
  Arithmetic arithmetic(format, natural_accumulator(format));
  return find_algorithm(name)->run(inputs, settings, arithmetic);
}

Settings attention_settings(int d, bool backward = false) {
  Settings settings;
  settings.tiling = {16, 24, 3, false};
  settings.scale = 1 / std::sqrt(d);
  settings.backward = backward;
  return settings;
}

Tensors attention_inputs(int rows, int keys, int d, const NumberFormat& format, const char* law = "normal") {
  return make_inputs({Family::kAttention, rows, keys, d}, *parse_input_law(law), 1, 1, format);
}

void expect_close(const Tensors& a, const Tensors& b, double tolerance, std::string_view what) {
  for (const auto& [name, tensor] : b) {
    ASSERT_TRUE(a.contains(name)) << what << " " << name;
    for (size_t i = 0; i < tensor.data.size(); ++i)
      ASSERT_NEAR(a.at(name).data[i], tensor.data[i], tolerance) << what << " " << name << " " << i;
  }
}

// Attention and its gradients as anyone would write them down, in long double (64 bits of significand).
Tensors obvious_attention(const Tensors& x, double scale) {
  const Tensor &q = x.at("query"), &k = x.at("key"), &v = x.at("value"), &g = x.at("grad_out");
  Tensors y{{"out", Tensor(q.rows, v.cols)},      {"log_sum_exp", Tensor(q.rows, 1)},
            {"delta", Tensor(q.rows, 1)},         {"grad_query", Tensor(q.rows, q.cols)},
            {"grad_key", Tensor(k.rows, k.cols)}, {"grad_value", Tensor(v.rows, v.cols)}};
  for (int i = 0; i < q.rows; ++i) {
    std::vector<long double> p(k.rows);
    long double sum = 0, delta = 0;
    for (int j = 0; j < k.rows; ++j) {
      long double score = 0;
      for (int c = 0; c < q.cols; ++c) score += static_cast<long double>(q.at(i, c)) * k.at(j, c);
      sum += p[j] = std::exp(score * scale);
    }
    for (long double& pj : p) pj /= sum;
    y.at("log_sum_exp").at(i, 0) = static_cast<double>(std::log(sum));
    for (int c = 0; c < v.cols; ++c) {
      long double out = 0;
      for (int j = 0; j < k.rows; ++j) out += p[j] * v.at(j, c);
      y.at("out").at(i, c) = static_cast<double>(out);
      delta += out * g.at(i, c);
    }
    y.at("delta").at(i, 0) = static_cast<double>(delta);
    for (int j = 0; j < k.rows; ++j) {
      long double gp = 0;
      for (int c = 0; c < v.cols; ++c) {
        gp += static_cast<long double>(g.at(i, c)) * v.at(j, c);
        y.at("grad_value").at(j, c) += static_cast<double>(p[j] * g.at(i, c));
      }
      const long double gs = p[j] * (gp - delta) * scale;
      for (int c = 0; c < q.cols; ++c) {
        y.at("grad_query").at(i, c) += static_cast<double>(gs * k.at(j, c));
        y.at("grad_key").at(j, c) += static_cast<double>(gs * q.at(i, c));
      }
    }
  }
  return y;
}

// Scores up to 5, sums of 70 terms of size 1: errors stay below 1e3 fp64 roundoffs, 1e-13.
TEST(Attention, PlainInFp64MatchesTheFormula) {
  const Tensors inputs = attention_inputs(33, 70, 20, kFp64);
  expect_close(run("plain", inputs, attention_settings(20, true), kFp64),
               obvious_attention(inputs, 1 / std::sqrt(20)), 1e-13, "plain");
}

TEST(Attention, AllAlgorithmsAgreeInFp64) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.family != Family::kAttention) continue;
    for (const char* law : {"normal", "ties:3"})
      for (DeltaSource delta : {DeltaSource::kOut, DeltaSource::kProbabilities}) {
        const Tensors inputs = attention_inputs(37, 101, 16, kFp64, law);
        Settings settings = attention_settings(16, true);
        settings.delta = delta;
        const Tensors truth = run("plain", inputs, settings, kFp64);
        expect_close(run(algorithm.name, inputs, settings, kFp64), truth, 1e-12, algorithm.name);
        settings.tiling.reverse = true;
        expect_close(run(algorithm.name, inputs, settings, kFp64), truth, 1e-12, algorithm.name);
      }
  }
}

TEST(Attention, RowBlocksChangeNoBit) {
  const Tensors inputs = attention_inputs(64, 128, 32, kBf16);
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.family != Family::kAttention) continue;
    Settings settings = attention_settings(32);
    const Tensors first = run(algorithm.name, inputs, settings, kBf16);
    for (int block_q : {1, 7, 64, 1000}) {
      settings.tiling.block_q = block_q;
      EXPECT_EQ(run(algorithm.name, inputs, settings, kBf16).at("out").data, first.at("out").data)
          << algorithm.name << " " << block_q;
    }
  }
}

TEST(Attention, KeyBlocksChangeBits) {
  const Tensors inputs = attention_inputs(64, 128, 32, kBf16);
  Settings settings = attention_settings(32);
  const Tensors first = run("flash_reimplemented", inputs, settings, kBf16);
  settings.tiling.block_k = 64;
  EXPECT_NE(run("flash_reimplemented", inputs, settings, kBf16).at("out").data, first.at("out").data);
}

TEST(Attention, VariantsEqualTheirOriginalWithoutTheirDifference) {
  const Tensors inputs = attention_inputs(64, 128, 32, kBf16);
  const Settings settings = attention_settings(32);
  const auto out = [&](const char* name) { return run(name, inputs, settings, kBf16).at("out").data; };
  EXPECT_EQ(out("flash3_fp8"), out("flash2_shipped"));  // bf16 has no scales
  Settings one_part = settings;
  one_part.tiling.splits = 1;
  const Tensors whole = run("split_k", inputs, one_part, kBf16),
                shipped = run("flash2_shipped", inputs, settings, kBf16);
  EXPECT_EQ(whole.at("out").data, shipped.at("out").data);
}

TEST(Attention, OutputsAreInTheStorageFormat) {
  for (const char* name : {"bf16", "fp16", "e4m3", "e5m2"}) {
    const NumberFormat format = *parse_format(name);
    Arithmetic arithmetic(format, natural_accumulator(format));
    const Tensors inputs = attention_inputs(16, 64, 32, arithmetic.storage());
    for (const Algorithm& algorithm : algorithms()) {
      if (algorithm.family != Family::kAttention) continue;
      const Tensors results = algorithm.run(inputs, attention_settings(32), arithmetic);
      for (double x : results.at("out").data)
        ASSERT_EQ(x, round_scalar(arithmetic.storage(), Rounding::kNearestEven, x))
            << algorithm.name << " " << name;
    }
  }
}

// Sides whose outputs are no multiple of the tile as well: 14 - 2 = 12, 11 - 2 = 9.
TEST(Convolution, WinogradMatchesDirect) {
  for (int side : {3, 11, 14}) {
    const Tensors inputs =
        make_inputs({Family::kConvolution, 5, side, 7}, *parse_input_law("normal"), 1, 1, kFp64);
    const Tensors truth = run("direct", inputs, {}, kFp64);
    // The transforms of F(6, 3) grow numbers by up to 100, so 1e2 * 63 terms * 1e-16.
    for (const char* name : {"winograd_f2", "winograd_f4", "winograd_f6"})
      expect_close(run(name, inputs, {}, kFp64), truth, 1e-12, name);
  }
}

TEST(Convolution, DirectByHand) {
  Tensors inputs{{"image", Tensor(1, 9)}, {"filter", Tensor(1, 9)}};
  double sum = 0;
  for (int i = 0; i < 9; ++i) {
    inputs["image"].data[i] = i + 1;
    inputs["filter"].data[i] = 9 - i;
    sum += (i + 1) * (9 - i);
  }
  EXPECT_EQ(run("direct", inputs, {}, kFp64).at("out").data, std::vector<double>{sum});
}

TEST(Reductions, FusedAgreesInFp64) {
  Settings settings;
  settings.tiling.block_k = 10;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.family == Family::kAttention || algorithm.family == Family::kConvolution) continue;
    const Tensors inputs = make_inputs({algorithm.family, 6, 37, 8}, *parse_input_law("normal"), 1, 1, kFp64);
    expect_close(run(algorithm.name, inputs, settings, kFp64),
                 run(plain_of(algorithm.family).name, inputs, settings, kFp64), 1e-12, algorithm.name);
  }
}

TEST(Reductions, PlainMatchesTheFormulas) {
  const Tensors softmax{{"logits", Tensor(1, 2)}};
  EXPECT_EQ(run("softmax_two_pass", softmax, {}, kFp64).at("out").data, (std::vector<double>{0.5, 0.5}));
  Tensors norm{{"input", Tensor(1, 2)}};
  norm["input"].data = {1, 3};  // mean 2, variance 1, epsilon 1e-5
  EXPECT_NEAR(run("layer_norm_two_pass", norm, {}, kFp64).at("out").at(0, 1), 1 / std::sqrt(1 + 1e-5), 1e-15);
  Tensors loss{{"hidden", Tensor(1, 1, 1.0)}, {"classes", Tensor(2, 1)}, {"label", Tensor(1, 1, 1.0)}};
  loss["classes"].data = {0, 2};  // logits 0 and 2, label 1: log(1 + e^-2)
  EXPECT_NEAR(run("cross_entropy_plain", loss, {}, kFp64).at("loss").at(0, 0), std::log1p(std::exp(-2.0)),
              1e-15);
}

}  // namespace
}  // namespace foreshock::lab
