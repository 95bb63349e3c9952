#include "shadow/judgement.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/shadow/slice_data.h"
#include "tests/support/variations.h"

namespace foreshock {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Fills the trainer's results with those of the reference, changed by `change(exact, ulp)` and stored in the
// format.
template <class Change>
void fill_results(SliceData* data, Change change) {
  const AttentionSlice s = data->view();
  Reference ref;
  reference(s, &ref);
  for (size_t i = 0; i < data->out.size(); ++i)
    data->out.set(i, change(ref.out[i], ulp_at(s.dtype, ref.out[i])));
  data->log_sum_exp = PackedArray(DType::kFp32, s.rows);
  for (int r = 0; r < s.rows; ++r) data->log_sum_exp.set(r, ref.log_sum_exp[r]);
  if (!s.backward()) return;
  for (size_t i = 0; i < data->grad_query.size(); ++i) {
    data->grad_query.set(i, change(ref.grad_query[i], ulp_at(s.dtype, ref.grad_query[i])));
  }
}

// The gradient that the output and log-sum-exp in `data` define, as a kernel is asked for it, changed and
// stored.
template <class Change>
void fill_given_gradient(SliceData* data, Change change) {
  Reference ref;
  reference(data->view(), &ref);
  for (size_t i = 0; i < data->grad_query.size(); ++i)
    data->grad_query.set(i,
                         change(ref.given_grad_query[i], ulp_at(data->shape.dtype, ref.given_grad_query[i])));
}

double unchanged(double exact, double) { return exact; }

SliceDeviation judged(const SliceData& data) {
  DeviationWorkspace workspace;
  return judge(data.view(), &workspace);
}

TEST(Deviation, RoundedReferenceIsBelowTheNoiseFloor) {
  for (const bool backward : {false, true}) {
    SliceData data({DType::kBf16, 16, 500, 64, 64, backward});
    fill_results(&data, unchanged);
    if (backward) fill_given_gradient(&data, unchanged);
    const SliceDeviation d = judged(data);
    EXPECT_EQ(d.backward, backward);
    EXPECT_EQ(d.rows_compared, 16);
    EXPECT_EQ(d.rows_not_comparable, 0);
    // Rounding to 8 bits is at most 2^-8 / 2 per element, about 0.29 of the spacing 2^-8..2^-7 in the mean.
    EXPECT_GT(*d.relative_error_mean, 1e-3);
    EXPECT_LE(*d.relative_error_max, 0x1p-8);
    EXPECT_LT(*d.deviation_ratio, 1);
    EXPECT_EQ(d.bias.numerator, d.rounded_bias.numerator);
    EXPECT_EQ(d.bias.denominator, d.rounded_bias.denominator);
    EXPECT_LE(*d.lse_error_abs_max, 0x1p-21);  // half a spacing of fp32 at 8
    EXPECT_EQ(d.nonfinite_inputs + d.nonfinite_out + d.nonfinite_lse + d.nonfinite_gradient, 0u);
  }
}

TEST(Deviation, EachFloorHasRatioOneAgainstItself) {
  for (const bool backward : {false, true}) {
    SliceData data({DType::kBf16, 16, 500, 64, 64, backward});
    fill_results(&data, unchanged);
    DeviationWorkspace own;
    judge(data.view(), &own);
    const auto take = [&](const FloorRows& rows) {
      PackedArray& judged = backward ? data.grad_query : data.out;
      const std::vector<double>& values = backward ? rows.grad_query : rows.out;
      for (size_t i = 0; i < judged.size(); ++i) judged.set(i, values[i]);
    };
    take(own.floors.plain);
    EXPECT_DOUBLE_EQ(*judged(data).deviation_ratio, 1);
    take(own.floors.fused);
    EXPECT_NEAR(*judged(data).fused_ratio, 1, 1e-12);
  }
}

TEST(Deviation, PlantedFactorIsFound) {
  for (const bool backward : {false, true}) {
    SliceData data({DType::kBf16, 16, 500, 64, 64, backward});
    fill_results(&data, [](double x, double) { return x * (1 + 0x1p-6); });
    const SliceDeviation d = judged(data);
    // sqrt(2^-12 + rounding^2) with a rounding error of at most 2^-8.
    EXPECT_GE(*d.relative_error_mean, 0x1p-6 - 0x1p-8);
    EXPECT_LE(*d.relative_error_mean, 0x1.2p-6);
    EXPECT_GT(*d.deviation_ratio, 2);
    EXPECT_GT(d.bias.numerator / d.bias.denominator, 1);
    EXPECT_LT(std::fabs(d.rounded_bias.numerator / d.rounded_bias.denominator), 0.1);
  }
}

// Under dropout and soft caps: the results of both floors are sound, an error of 5 % in each element and one
// of a kernel that has applied neither are found.
TEST(Deviation, ErrorUnderDropoutOrSoftCapIsFound) {
  for (const bool backward : {false, true})
    for (const auto& [dropout, cap] :
         {std::pair(0.1, 0.0), {0.5, 0.0}, {0.0, 50.0}, {0.0, 1.0}, {0.1, 2.0}}) {
      SCOPED_TRACE(testing::Message() << dropout << " " << cap << " " << backward);
      SliceData data({DType::kBf16, 16, 200, 64, 64, backward});
      data.soft_cap = cap;
      if (dropout > 0) data.drop(dropout);
      fill_results(&data, unchanged);
      DeviationWorkspace own;
      judge(data.view(), &own);
      PackedArray& result = backward ? data.grad_query : data.out;
      const auto judged_with = [&](auto value) {
        for (size_t i = 0; i < result.size(); ++i) result.set(i, value(i));
        return *judged(data).fused_ratio;
      };
      const std::vector<double> fused = backward ? own.floors.fused.grad_query : own.floors.fused.out;
      EXPECT_LT(judged_with([&](size_t i) { return fused[i]; }), 1.01);
      EXPECT_GT(judged_with([&](size_t i) { return fused[i] * (1 + 0.05 * data.normal(data.engine)); }), 6);
      if (cap == 50) continue;  // it hardly changes scores of 1
      SliceData without = data;
      without.soft_cap = 0;
      without.kept = {};
      fill_results(&without, unchanged);
      result = backward ? without.grad_query : without.out;
      EXPECT_GT(*judged(data).fused_ratio, 6);
    }
}

struct Pooled {
  Bias kernel, control;
  double relative_error;
};

template <class Fill>
Pooled pool_of(int slices, const SliceShape& shape, Fill fill) {
  BiasPool kernel, control;
  double relative = 0;
  DeviationWorkspace workspace;
  for (int n = 0; n < slices; ++n) {
    SliceData data(shape, 100 + n);
    fill(&data);
    const SliceDeviation d = judge(data.view(), &workspace);
    kernel.add({.step = n}, d.bias);
    control.add({.step = n}, d.rounded_bias);
    relative += *d.relative_error_mean / slices;
  }
  return {*kernel.bias(), *control.bias(), relative};
}

void expect_quiet(const Bias& control) {
  EXPECT_LT(std::fabs(control.ulp), 0.03);
  EXPECT_LT(std::fabs(*control.z), 4);
}

TEST(Deviation, PlantedBiasIsFoundAndTheControlIsQuiet) {
  FORESHOCK_SKIP_IF_SANITIZED();
  for (const bool backward : {false, true}) {
    const Pooled pooled = pool_of(64, {DType::kBf16, 16, 200, 64, 64, backward}, [](SliceData* data) {
      fill_results(data, [](double x, double ulp) { return x + std::copysign(0.3 * ulp, x); });
    });
    // Rounding keeps the mean of a shift. Near powers of two the ulp of the result differs; hence the room.
    EXPECT_NEAR(pooled.kernel.ulp, 0.3, 0.02);
    EXPECT_GT(*pooled.kernel.z, 6);
    expect_quiet(pooled.control);
  }
}

TEST(Deviation, RoundedReferenceHasNoBiasOverSlices) {
  FORESHOCK_SKIP_IF_SANITIZED();
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
    const Pooled pooled =
        pool_of(64, {dtype, 16, 200, 64, 64, false}, [](SliceData* data) { fill_results(data, unchanged); });
    expect_quiet(pooled.kernel);
    expect_quiet(pooled.control);
  }
}

// A fused kernel sums the weights before casting them to bf16 and multiplies with them after. Scores within
// 2^-9 of the maximum cast to one, so on flat rows the output is too large: a bias that the relative error
// hardly shows.
void fill_as_fused_kernel(SliceData* data) {
  const SliceShape& shape = data->shape;
  for (size_t i = 0; i < data->query.size(); ++i) data->query.set(i, data->query.get(i) * 3e-4);
  const AttentionSlice s = data->view();
  std::vector<double> weight(shape.keys);
  for (int row = 0; row < shape.rows; ++row) {
    double max = -kInfinity, sum = 0;
    for (int j = 0; j < shape.keys; ++j) {
      weight[j] = 0;
      for (int k = 0; k < shape.head_dim; ++k) {
        weight[j] += data->query.get(row * shape.head_dim + k) * data->key.get(j * shape.head_dim + k);
      }
      weight[j] *= s.scale;
      max = std::fmax(max, weight[j]);
    }
    for (double& w : weight) {
      w = std::exp(w - max);
      sum += w;
      w = round_to(DType::kBf16, w);
    }
    for (int c = 0; c < shape.value_dim; ++c) {
      double out = 0;
      for (int j = 0; j < shape.keys; ++j) out += weight[j] * data->value.get(j * shape.value_dim + c);
      data->out.set(row * shape.value_dim + c, out / sum);
    }
  }
}

TEST(Deviation, FlatRowsOfAFusedKernelAreBiased) {
  FORESHOCK_SKIP_IF_SANITIZED();
  const Pooled pooled = pool_of(32, {DType::kBf16, 16, 1024, 64, 64, false}, fill_as_fused_kernel);
  EXPECT_GT(pooled.kernel.ulp, 0.05);
  EXPECT_LT(pooled.kernel.ulp, 0.3);
  EXPECT_GT(*pooled.kernel.z, 6);
  EXPECT_LT(pooled.relative_error, 3e-3);
  expect_quiet(pooled.control);
}

// Sum of products in fp32 as vector code makes it: so many partial sums, which are added at the end.
template <class Product>
float sum_in_lanes(int count, int lanes, Product product) {
  std::vector<float> partial(lanes);
  for (int i = 0; i < count; ++i) partial[i % lanes] += product(i);
  float sum = 0;
  for (float each : partial) sum += each;
  return sum;
}

// Output, log-sum-exp and the gradient of the query by the algorithm of fused kernels in fp32: delta from the
// stored output.
void fill_gradient_as_fused_kernel(SliceData* data) {
  data->log_sum_exp = PackedArray(DType::kFp32, data->shape.rows);
  const SliceShape& shape = data->shape;
  const AttentionSlice s = data->view();
  const auto value_of = [&](int key, int c) {
    return static_cast<float>(data->value.get(key * shape.value_dim + c));
  };
  for (int row = 0; row < shape.rows; ++row) {
    const auto grad_out_of = [&](int c) {
      return static_cast<float>(data->grad_out.get(row * shape.value_dim + c));
    };
    std::vector<float> weight(shape.keys), out(shape.value_dim);
    float max = -INFINITY, sum = 0;
    for (int key = 0; key < shape.keys; ++key) {
      const float score = sum_in_lanes(shape.head_dim, 8, [&](int k) {
        return static_cast<float>(data->query.get(row * shape.head_dim + k)) *
               static_cast<float>(data->key.get(key * shape.head_dim + k));
      });
      weight[key] = score * static_cast<float>(s.scale);
      max = std::fmax(max, weight[key]);
    }
    const std::vector<float> score = weight;
    for (float& each : weight) sum += each = std::exp(each - max);
    for (int c = 0; c < shape.value_dim; ++c)
      out[c] = sum_in_lanes(shape.keys, 1, [&](int key) { return weight[key] / sum * value_of(key, c); });
    for (int c = 0; c < shape.value_dim; ++c) data->out.set(row * shape.value_dim + c, out[c]);
    data->log_sum_exp.set(row, max + std::log(sum));
    const auto log_sum_exp = static_cast<float>(data->log_sum_exp.get(row));
    const float delta = sum_in_lanes(shape.value_dim, 8, [&](int c) { return grad_out_of(c) * out[c]; });
    std::vector<float> grad_score(shape.keys);
    for (int key = 0; key < shape.keys; ++key) {
      const float grad_weight =
          sum_in_lanes(shape.value_dim, 16, [&](int c) { return grad_out_of(c) * value_of(key, c); });
      grad_score[key] = std::exp(score[key] - log_sum_exp) * (grad_weight - delta);
    }
    for (int k = 0; k < shape.head_dim; ++k) {
      const float grad = sum_in_lanes(shape.keys, 1, [&](int key) {
        return grad_score[key] * static_cast<float>(data->key.get(key * shape.head_dim + k));
      });
      data->grad_query.set(row * shape.head_dim + k, grad * static_cast<float>(s.scale));
    }
  }
}

// With all of a row's weight on one key the exact gradient is next to nothing, and what is computed is the
// difference of two sums of the same 64 products. Plain summed them in one order and was exact, so that a
// kernel, which takes two, erred 1e39 times as much. The errors of both are of a few roundings now: those of
// PyTorch's kernel, from logits of 3 to 10,000, had ratios from 0.7 to 1.4. Sums in more lanes err less.
TEST(Deviation, AKernelErrsAsPlainDoesUnderSaturatedSoftmax) {
  int decided = 0;
  for (const double factor : {1, 100, 1000, 10000}) {
    for (const uint64_t seed : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << factor << " " << seed);
      SliceData data({DType::kFp32, 16, 100, 64, 64, true}, seed);
      for (size_t i = 0; i < data.query.size(); ++i) data.query.set(i, factor * data.query.get(i));
      fill_gradient_as_fused_kernel(&data);
      const SliceDeviation d = judged(data);
      if (!d.deviation_ratio) continue;
      ++decided;
      EXPECT_LT(*d.deviation_ratio, 3) << "where the alarm is";
      EXPECT_GT(*d.deviation_ratio, 0.1);
      EXPECT_LT(d.fused_ratio.value_or(0), 3);
    }
  }
  EXPECT_GE(decided, 8);
}

// Grows one row of grad_out, so that nearly all of the gradient is that row's.
void let_one_row_outweigh(SliceData* data, double factor) {
  const size_t columns = data->shape.value_dim;
  for (size_t c = 0; c < columns; ++c)
    data->grad_out.set(5 * columns + c, factor * data->grad_out.get(5 * columns + c));
}

TEST(Deviation, OneLargeRowDoesNotDecideTheBackwardRatio) {
  SliceData data({DType::kFp32, 16, 64, 16, 16, true});
  fill_results(&data, unchanged);
  SliceDeviation d = judged(data);
  EXPECT_TRUE(d.deviation_ratio);
  EXPECT_GT(*d.effective_rows, kLeastEffectiveRows);
  EXPECT_GT(*d.plain_effective_rows, kLeastEffectiveRows);

  let_one_row_outweigh(&data, 1000);
  fill_results(&data, [](double x, double ulp) { return x + 64 * ulp; });
  d = judged(data);
  EXPECT_FALSE(d.deviation_ratio);
  EXPECT_FALSE(d.fused_ratio) << "the right output that the call was given does not stand for dQ";
  // The squares of the other rows' errors are about a millionth of this one's each.
  EXPECT_NEAR(*d.effective_rows, 1, 1e-3);
  EXPECT_NEAR(*d.plain_effective_rows, 1, 1e-3);
  EXPECT_GT(d.kernel_error_norm / d.plain_error_norm, 3) << "what is known is told";

  // Forward nothing of this is so.
  SliceData forward({DType::kFp32, 16, 64, 16, 16, false});
  for (size_t c = 0; c < 16; ++c) forward.query.set(c, 100 * forward.query.get(c));
  fill_results(&forward, unchanged);
  EXPECT_TRUE(judged(forward).deviation_ratio);
}

TEST(Deviation, FindsTheErrorOfOneRowAmongEqualOnes) {
  SliceData data({DType::kBf16, 16, 64, 64, 64, true});  // what is stored in bf16 errs in each element
  fill_results(&data, unchanged);
  for (size_t c = 0; c < 64; ++c) data.grad_query.set(5 * 64 + c, 2 * data.grad_query.get(5 * 64 + c));
  const SliceDeviation d = judged(data);
  EXPECT_LT(*d.effective_rows, kLeastEffectiveRows);
  EXPECT_GE(*d.plain_effective_rows, kEnoughFloorRows);
  // That row errs by itself, plain by at most a rounding of 2^-9 to store each element and a few of what is
  // stored between: below 2^-6 of 16 such rows.
  EXPECT_GT(*d.deviation_ratio, 0x1p6 / 4);
}

// Keys [first, first + keys) of `whole`, as ring attention calls the backward of one block: with the output
// and the log-sum-exp over all keys. The gradient is `factor` times the exact one, rounded.
SliceData block_of(const SliceData& whole, int first, int keys, double factor) {
  SliceShape shape = whole.shape;
  shape.keys = keys;
  SliceData block(shape);
  for (size_t i = 0; i < block.query.size(); ++i) block.query.set(i, whole.query.get(i));
  for (size_t i = 0; i < block.grad_out.size(); ++i) block.grad_out.set(i, whole.grad_out.get(i));
  for (size_t i = 0; i < block.out.size(); ++i) block.out.set(i, whole.out.get(i));
  for (size_t i = 0; i < block.key.size(); ++i) {
    block.key.set(i, whole.key.get(static_cast<size_t>(first) * shape.head_dim + i));
    block.value.set(i, whole.value.get(static_cast<size_t>(first) * shape.value_dim + i));
  }
  for (int row = 0; row < shape.rows; ++row)
    block.key_limit[row] = std::clamp<int64_t>(static_cast<int64_t>(whole.key_limit[row]) - first, 0, keys);
  block.log_sum_exp = whole.log_sum_exp;
  Reference ref;
  reference(block.view(), &ref);
  for (size_t i = 0; i < block.grad_query.size(); ++i)
    block.grad_query.set(i, ref.given_grad_query[i] * (1 + factor * block.normal(block.engine)));
  return block;
}

TEST(Deviation, RingBlocksAreJudgedWithTheGivenOutputAndLogSumExp) {
  for (const bool causal : {false, true}) {
    for (const int blocks : {2, 4}) {
      SliceData whole({DType::kBf16, 16, 512, 64, 64, true}, 7);
      if (causal) whole.causal();
      fill_results(&whole, unchanged);
      std::vector<double> sum(whole.grad_query.size());
      for (int n = 0; n < blocks; ++n) {
        SCOPED_TRACE(testing::Message() << causal << " " << n << " of " << blocks);
        const int keys = 512 / blocks;
        const SliceData sound = block_of(whole, n * keys, keys, 0);
        SliceDeviation d = judged(sound);
        EXPECT_LE(d.deviation_ratio.value_or(0), 1.5);
        EXPECT_LE(d.fused_ratio.value_or(0), 1.5);
        if (!causal || n > 0) {
          EXPECT_TRUE(d.partial);
        }
        EXPECT_LE(d.partial_rows, 16);
        EXPECT_TRUE(causal || d.partial_rows == 16);
        EXPECT_FALSE(d.lse_error_ratio.value_or(0) > 1);
        d = judged(block_of(whole, n * keys, keys, 0.02));
        // Of a causal ring few rows see the last block, and too few decide no ratio.
        EXPECT_TRUE(d.fused_ratio || causal);
        EXPECT_GT(d.fused_ratio.value_or(INFINITY), 3);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += sound.grad_query.get(i);
      }
      // The blocks of dQ add up to that of all keys: the references of blocks are consistent with the whole.
      double error = 0, norm = 0;
      for (size_t i = 0; i < sum.size(); ++i) {
        error += std::pow(sum[i] - whole.grad_query.get(i), 2);
        norm += std::pow(whole.grad_query.get(i), 2);
      }
      EXPECT_LT(std::sqrt(error / norm), 0x1p-7);
    }
  }
}

TEST(Deviation, AWholeCallIsNotPartial) {
  SliceData data({DType::kBf16, 16, 500, 64, 64, true});
  fill_results(&data, unchanged);
  EXPECT_FALSE(judged(data).partial);
  EXPECT_LT(*judged(data).lse_error_ratio, 0.1);
  // Impossible for more keys: exp(score) of the slice's own alone add up to more.
  data.log_sum_exp.set(3, data.log_sum_exp.get(3) - 0.5);
  EXPECT_GT(*judged(data).lse_error_ratio, 1);
  EXPECT_FALSE(judged(data).partial);
}

TEST(Deviation, AWrongLogSumExpIsFoundForward) {
  SliceData data({DType::kBf16, 16, 500, 64, 64, false});
  fill_results(&data, unchanged);
  EXPECT_LT(*judged(data).lse_error_ratio, 0.1);
  data.log_sum_exp.set(3, data.log_sum_exp.get(3) + 0.05);
  EXPECT_GT(*judged(data).lse_error_ratio, 1);
  EXPECT_EQ(judged(data).partial_rows, 0);
}

// As biases of the query and key projections shift all scores of a model: a score of -120 is rounded to 0.5
// in bf16, so plain attention errs by a tenth and more, and beside it nothing a kernel does stands out.
TEST(Deviation, ErrorsUnderLargeScoresAreFoundByTheFusedFloor) {
  for (const bool backward : {false, true}) {
    for (const double offset : {-120.0, 120.0}) {
      SCOPED_TRACE(testing::Message() << backward << " " << offset);
      SliceData data({DType::kBf16, 16, 500, 64, 64, backward});
      for (int row = 0; row < 16; ++row) data.query.set(row * 64, 1);
      for (int key = 0; key < 500; ++key) data.key.set(key * 64, offset * 8);
      fill_results(&data, unchanged);
      if (backward) fill_given_gradient(&data, unchanged);
      SliceDeviation d = judged(data);
      EXPECT_LT(*d.fused_ratio, 1.5);
      const auto wrong = [&](double x, double) { return x * (1 + 0.05 * data.normal(data.engine)); };
      if (backward) {
        fill_given_gradient(&data, wrong);
      } else {
        fill_results(&data, wrong);
      }
      d = judged(data);
      EXPECT_LT(*d.deviation_ratio, 2) << "plain attention does not tell";
      EXPECT_GT(*d.fused_ratio, 3);
    }
  }
}

TEST(Deviation, JudgesANonFiniteResult) {
  for (const double planted : {kNaN, kInfinity}) {
    SliceData data({DType::kBf16, 16, 100, 64, 64, false});
    fill_results(&data, unchanged);
    data.out.set(70, planted);
    data.log_sum_exp.set(2, kNaN);
    const SliceDeviation d = judged(data);
    EXPECT_EQ(d.nonfinite_out, 1u);
    EXPECT_EQ(d.nonfinite_lse, 1u);
    EXPECT_EQ(d.rows_compared, 16);
    EXPECT_EQ(*d.relative_error_max, kInfinity);
    EXPECT_EQ(*d.relative_error_mean, kInfinity);
    EXPECT_EQ(*d.deviation_ratio, kInfinity);
    EXPECT_EQ(*d.lse_error_abs_max, kInfinity);
    EXPECT_TRUE(std::isfinite(d.bias.numerator));
    EXPECT_GT(d.bias.denominator, 0);
  }
}

// Beside a saturated softmax a gradient is almost 0. A wrong one is far from it, and still a number.
TEST(Deviation, ErrorOfTinyOutputsIsFinite) {
  SliceData data({DType::kFp64, 16, 100, 64, 64, true});
  for (size_t n = 0; n < 16 * 64; ++n) data.grad_out.set(n, 1e-155 * data.grad_out.get(n));
  fill_results(&data, unchanged);
  data.grad_query.set(70, 1);
  const SliceDeviation d = judged(data);
  EXPECT_EQ(d.nonfinite_gradient, 0u);
  EXPECT_GT(*d.relative_error_max, 1e100);
  EXPECT_TRUE(std::isfinite(*d.relative_error_max));
}

// As under a loss scale that is too large: the gradients going in are finite, one going out is not.
TEST(Deviation, DoesNotCompareAnInfThatTheFormatRequires) {
  SliceData data({DType::kFp16, 16, 100, 64, 64, true});
  for (size_t n = 0; n < 100 * 64; ++n) data.key.set(n, 8 * data.key.get(n));
  for (size_t n = 0; n < 16 * 64; ++n) data.grad_out.set(n, 14000 * data.grad_out.get(n));
  fill_results(&data, unchanged);
  const SliceDeviation d = judged(data);
  ASSERT_EQ(d.nonfinite_inputs, 0u);
  ASSERT_GT(d.nonfinite_gradient, 0u);
  EXPECT_TRUE(std::isfinite(*d.relative_error_max));
  // Rounding once costs an element half a unit in the last place, 2^-11 of it at most.
  EXPECT_LE(*d.relative_error_max, 0x1p-11);

  // A sound kernel rounds the gradients of the scores to fp16, and has NaN or another Inf where they
  // overflow.
  size_t overflown = 0;
  while (!std::isinf(data.grad_query.get(overflown))) ++overflown;
  const double right = data.grad_query.get(overflown);
  for (const double other : {-right, kNaN}) {
    data.grad_query.set(overflown, other);
    const SliceDeviation row_left_out = judged(data);
    EXPECT_TRUE(std::isfinite(*row_left_out.relative_error_max));
    EXPECT_GT(row_left_out.rows_not_comparable, 0);
  }
}

// The last steps of a training that diverges: scores of 1e8 have errors of several nats in fp32, and scores
// of 1e40 are Inf. The kernel has NaN.
TEST(Deviation, ScoresThatOverflowInEveryKernelAreNotJudged) {
  for (const bool backward : {false, true}) {
    for (const double query : {1.0, 1e14, 1e30}) {
      SliceData data({DType::kFp32, 16, 100, 64, 64, backward});
      for (size_t i = 0; i < data.query.size(); ++i) data.query.set(i, query * data.query.get(i));
      for (size_t i = 0; i < data.key.size(); ++i) data.key.set(i, query / 1e20 * data.key.get(i));
      fill_results(&data, unchanged);
      PackedArray& result = backward ? data.grad_query : data.out;
      for (size_t i = 0; i < result.size(); ++i) result.set(i, kNaN);
      if (!backward) {
        data.log_sum_exp = PackedArray(DType::kFp32, 16);
        for (size_t i = 0; i < 16; ++i) data.log_sum_exp.set(i, kNaN);
      }
      const SliceDeviation d = judged(data);
      const bool overflows = query > 1;
      EXPECT_EQ(d.rows_compared, overflows ? 0 : 16);
      EXPECT_EQ(std::isinf(d.relative_error_max.value_or(0)), !overflows) << "NaN at small scores is a fault";
      EXPECT_EQ(std::isinf(d.lse_error_abs_max.value_or(0)), !overflows && !backward);
      if (overflows) {
        EXPECT_FALSE(d.fused_ratio);
      }
    }
  }
}

// The exact gradient of 1e-60 is 0 in fp32, so a relative error of 1 or more is not the kernel's.
TEST(Deviation, TinyOutputsHaveNoRelativeError) {
  SliceData data({DType::kFp32, 16, 100, 64, 64, true});
  for (size_t i = 0; i < data.query.size(); ++i) data.query.set(i, 1000 * data.query.get(i));
  fill_gradient_as_fused_kernel(&data);
  for (size_t i = 0; i < data.grad_query.size(); ++i) data.grad_query.set(i, 0x1p-126);
  const SliceDeviation d = judged(data);
  EXPECT_LT(d.relative_error_max.value_or(0), 2);
  EXPECT_LT(d.fused_ratio.value_or(0), 3);
}

// The forward call stored the right output, and the backward call read another one.
TEST(Deviation, AWrongOutputGivenToABackwardCallRaisesItsFusedRatio) {
  SliceData data({DType::kBf16, 16, 500, 64, 64, true});
  fill_results(&data, unchanged);
  fill_given_gradient(&data, unchanged);
  EXPECT_LT(*judged(data).fused_ratio, 1.5);
  for (size_t i = 0; i < data.out.size(); ++i) {
    const double out = data.out.get(i);
    data.out.set(i, out + 8 * ulp_at(DType::kBf16, out));
  }
  fill_given_gradient(&data, unchanged);
  EXPECT_GT(*judged(data).fused_ratio, 6) << "8 ulp beside the 0.3 ulp of rounding";
}

TEST(Deviation, NonFiniteInputsMakeRowsIncomparable) {
  SliceData data({DType::kFp16, 16, 100, 64, 64, true});
  fill_results(&data, unchanged);
  data.query.set(64 * 3, kNaN);
  data.grad_out.set(64 * 5, kInfinity);
  const SliceDeviation d = judged(data);
  EXPECT_EQ(d.nonfinite_inputs, 2u);
  EXPECT_EQ(d.rows_not_comparable, 2);
  EXPECT_EQ(d.rows_compared, 14);
  EXPECT_TRUE(std::isfinite(*d.relative_error_max));
  EXPECT_EQ(*d.logit_abs_max, kInfinity);
}

// A kernel multiplies the key and value that a row does not see by a weight of 0, and 0 times NaN is NaN.
TEST(Deviation, NaNOfAKeyThatARowDoesNotSeeIsNotTheKernels) {
  for (const bool backward : {false, true}) {
    SliceData data({DType::kBf16, 16, 100, 64, 64, backward});
    for (int row = 0; row < 16; ++row) data.key_limit[row] = 6 * row + 5;
    if (backward) {
      fill_given_gradient(&data, unchanged);
    } else {
      fill_results(&data, unchanged);
      data.log_sum_exp.set(3, kNaN);
    }
    (backward ? data.grad_query : data.out).set(3 * 64, kNaN);
    EXPECT_EQ(judged(data).relative_error_max, kInfinity) << "all inputs are finite";
    data.key.set(99 * 64, kNaN);  // no row sees it
    const SliceDeviation d = judged(data);
    EXPECT_GE(d.rows_not_comparable, 1);
    EXPECT_TRUE(std::isfinite(d.relative_error_max.value_or(0)));
    EXPECT_TRUE(std::isfinite(d.lse_error_abs_max.value_or(0)));
    if (backward) continue;  // the exact dQ has the factor key, so that NaN reaches all rows
    EXPECT_EQ(d.rows_compared, 15) << "rows that are finite are compared";
    EXPECT_LT(*d.fused_ratio, 2);
  }
}

TEST(Deviation, NaNIsNotTheKernelsIfTheSliceLacksKeys) {
  SliceData data({DType::kBf16, 16, 100, 64, 64, false});
  fill_results(&data, unchanged);
  data.out.set(3 * 64, kNaN);
  AttentionSlice slice = data.view();
  slice.lacks_keys = true;
  DeviationWorkspace workspace;
  const SliceDeviation d = judge(slice, &workspace);
  EXPECT_EQ(d.rows_not_comparable, 1);
  EXPECT_EQ(d.rows_compared, 15);
  EXPECT_TRUE(std::isfinite(*d.relative_error_max));
}

// The output of a kernel whose tanh has relative errors of up to 2^-11, as tanh.approx.f32 has.
void fill_out_of_approximate_tanh(SliceData* data) {
  const AttentionSlice s = data->view();
  std::uniform_real_distribution<double> error(-0x1p-11, 0x1p-11);
  for (int row = 0; row < s.rows; ++row) {
    std::vector<double> weights(s.keys), out(s.value_dim);
    double sum = 0;
    for (int j = 0; j < s.keys; ++j) {
      double product = 0;
      for (int k = 0; k < s.head_dim; ++k)
        product += data->query.get(row * s.head_dim + k) * data->key.get(size_t(j) * s.head_dim + k);
      const double tanh = std::tanh(product * s.scale / s.soft_cap) * (1 + error(data->engine));
      sum += weights[j] = std::exp(s.soft_cap * tanh - s.soft_cap);
    }
    for (int c = 0; c < s.value_dim; ++c) {
      for (int j = 0; j < s.keys; ++j)
        out[c] += round_to(s.dtype, weights[j] / sum) * data->value.get(size_t(j) * s.value_dim + c);
      data->out.set(row * s.value_dim + c, out[c]);
    }
  }
}

TEST(Deviation, AnApproximateTanhOfASoftCapIsNoError) {
  for (const DType dtype : {DType::kBf16, DType::kFp16})
    for (const double spread : {1.0, 4.0, 12.0}) {  // of the products
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << spread);
      SliceData data({dtype, 16, 300, 64, 64, false});
      data.query.fill([&] { return spread * data.normal(data.engine); });
      data.soft_cap = 30;
      fill_out_of_approximate_tanh(&data);
      EXPECT_LT(*judged(data).fused_ratio, 1.6);  // 2 is an alarm
      for (size_t i = 0; i < data.out.size(); ++i) data.out.set(i, 1.05 * data.out.get(i));
      EXPECT_GT(*judged(data).fused_ratio, 2);
    }
}

TEST(Deviation, CountsRowsWithoutKeys) {
  SliceData data({DType::kBf16, 4, 100, 32, 32, false});
  data.key_limit[2] = 0;
  fill_results(&data, unchanged);
  const SliceDeviation d = judged(data);
  EXPECT_EQ(d.rows_compared, 3);
  EXPECT_EQ(d.rows_not_comparable, 1);
  EXPECT_EQ(d.rows_with_keys, 3);
  EXPECT_TRUE(std::isfinite(*d.lse_error_abs_max));
  EXPECT_GT(*d.entropy_min, 0);
}

TEST(Deviation, IsAbsentWithoutRows) {
  SliceData data({DType::kBf16, 2, 10, 8, 8, true});
  data.key_limit = {0, 0};
  const SliceDeviation d = judged(data);
  EXPECT_EQ(d.rows_compared, 0);
  EXPECT_FALSE(d.relative_error_mean || d.relative_error_max || d.deviation_ratio || d.lse_error_abs_max ||
               d.logit_abs_max || d.entropy_min || d.entropy_mean || d.grad_out_drift || d.near_tie_ratio);
}

TEST(Deviation, OneKeyHasNoErrorAndNoRatio) {
  SliceData data({DType::kBf16, 3, 1, 8, 8, false});
  fill_results(&data, unchanged);
  const SliceDeviation d = judged(data);
  EXPECT_EQ(*d.relative_error_max, 0);
  EXPECT_FALSE(d.deviation_ratio.has_value());
  EXPECT_EQ(*d.entropy_mean, 0);
}

TEST(Deviation, ReportsLogSumExpErrorAndScores) {
  SliceData data({DType::kFp64, 1, 2, 1, 1, false});
  data.query.set(0, 1);
  data.key.set(0, -5);
  data.key.set(1, 1);
  fill_results(&data, unchanged);
  data.log_sum_exp = PackedArray(DType::kFp64, 1);
  data.log_sum_exp.set(0, 1.25 + std::log1p(std::exp(-6)));
  const SliceDeviation d = judged(data);
  EXPECT_NEAR(*d.lse_error_abs_max, 0.25, 1e-15);
  EXPECT_EQ(*d.logit_abs_max, 5);
  EXPECT_EQ(d.near_tie_rows, 0);
  EXPECT_EQ(d.near_tie_ratio, 0);
  const double p = 1 / (1 + std::exp(-6.0));
  EXPECT_NEAR(*d.entropy_mean, -p * std::log(p) - (1 - p) * std::log(1 - p), 1e-15);
}

// Transformers masks padded keys by adding the lowest number of fp32.
TEST(Deviation, MasksAreNotCountedAsScores) {
  SliceData data({DType::kFp64, 1, 3, 1, 1, false});
  data.query.set(0, 1);
  for (const int key : {0, 1, 2}) data.key.set(key, 1.0 + key);
  data.mask = PackedArray(DType::kFp32, 3);
  data.mask.set(0, 0);
  data.mask.set(1, std::numeric_limits<float>::lowest());
  data.mask.set(2, -kInfinity);  // the row does not see this key
  fill_results(&data, unchanged);
  EXPECT_EQ(*judged(data).logit_abs_max, 2);
}

TEST(Deviation, WithoutOutputOnlyScoresAreJudged) {
  SliceData data({DType::kBf16, 2, 50, 8, 8, false});
  fill_results(&data, unchanged);
  const SliceDeviation whole = judged(data);
  AttentionSlice slice = data.view();
  slice.out = nullptr;
  ASSERT_TRUE(is_valid(slice));
  DeviationWorkspace workspace;
  const SliceDeviation d = judge(slice, &workspace);
  EXPECT_EQ(d.lse_error_abs_max, whole.lse_error_abs_max);
  EXPECT_EQ(d.logit_abs_max, whole.logit_abs_max);
  EXPECT_EQ(d.entropy_mean, whole.entropy_mean);
  EXPECT_EQ(d.entropy_min, whole.entropy_min);
  EXPECT_EQ(d.rows_with_keys, 2);
  EXPECT_EQ(d.rows_compared, 0);
  EXPECT_FALSE(d.relative_error_max || d.relative_error_mean || d.deviation_ratio || d.grad_out_drift);
  EXPECT_EQ(d.bias.denominator, 0);
  EXPECT_EQ(d.nonfinite_out, 0u);
  EXPECT_GT(whole.rows_compared, 0);
}

TEST(Deviation, ReportsTheProductOfErrorAndGradOut) {
  SliceData data({DType::kFp32, 2, 50, 8, 8, true});
  fill_results(&data, unchanged);
  const double before = *judged(data).grad_out_drift;
  data.out.set(9, data.out.get(9) + 0.5);
  EXPECT_NEAR(*judged(data).grad_out_drift - before, 0.5 * data.grad_out.get(9), 1e-6);
  data.out.set(9, kNaN);
  EXPECT_FALSE(judged(data).grad_out_drift.has_value());
}

TEST(Deviation, RatioLeavesOutAnOverflowOfPlain) {
  SliceData data({DType::kFp16, 2, 64, 8, 8, false});
  for (int k = 0; k < 8; ++k) data.query.set(k, 6000);
  fill_results(&data, unchanged);
  const SliceDeviation d = judged(data);
  EXPECT_EQ(d.rows_compared, 2);
  EXPECT_TRUE(std::isfinite(*d.deviation_ratio));
}

TEST(Deviation, RefusesInvalidSlices) {
  const SliceData data({DType::kBf16, 2, 10, 8, 8, true});
  EXPECT_TRUE(is_valid(data.view()));
  auto broken = [&](auto change) {
    AttentionSlice s = data.view();
    change(&s);
    return !is_valid(s);
  };
  EXPECT_TRUE(broken([](AttentionSlice* s) { s->dtype = DType::kBool; }));
  EXPECT_TRUE(broken([](AttentionSlice* s) { s->rows = 17; }));
  EXPECT_TRUE(broken([](AttentionSlice* s) { s->rows = 0; }));
  EXPECT_TRUE(broken([](AttentionSlice* s) { s->head_dim = 0; }));
  EXPECT_TRUE(broken([](AttentionSlice* s) { s->keys = -1; }));
  EXPECT_TRUE(broken([](AttentionSlice* s) { s->scale = kNaN; }));
  EXPECT_TRUE(broken([](AttentionSlice* s) { s->key = nullptr; }));
  EXPECT_TRUE(broken([](AttentionSlice* s) { s->grad_out = nullptr; }));
  EXPECT_TRUE(broken([](AttentionSlice* s) { s->out = nullptr; })) << "only a forward slice may be without";
  EXPECT_TRUE(broken([](AttentionSlice* s) { s->mask = s->key; }));
}

TEST(Deviation, AllocatesNothingOnceWarm) {
  SliceData data({DType::kBf16, 16, 300, 64, 64, true});
  DeviationWorkspace workspace;
  judge(data.view(), &workspace);
  const double* scratch = workspace.floors.scratch.data();
  judge(data.view(), &workspace);
  EXPECT_EQ(workspace.floors.scratch.data(), scratch);
}

}  // namespace
}  // namespace foreshock
