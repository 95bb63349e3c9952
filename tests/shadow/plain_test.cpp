#include "shadow/plain.h"

#include <gtest/gtest.h>

#include "shadow/reference.h"
#include "shadow/slice.h"
#include "tests/shadow/slice_data.h"

namespace foreshock {
namespace {

struct Obvious {
  std::vector<double> out, grad_query;
};

// The same roundings written down row by row, with sums in fp64.
Obvious obvious_plain(const SliceData& data) {
  const AttentionSlice s = data.view();
  auto rounded = [&](double x) { return round_to(s.dtype, x); };
  Obvious result{std::vector<double>(size_t(s.rows) * s.value_dim),
                 std::vector<double>(size_t(s.rows) * s.head_dim)};
  for (int row = 0; row < s.rows; ++row) {
    std::vector<double> weight(s.keys);
    double max = -INFINITY, sum = 0;
    for (int j = 0; j < s.keys; ++j) {
      double score = 0;
      for (int k = 0; k < s.head_dim; ++k) {
        score += data.query.get(row * s.head_dim + k) * data.key.get(j * s.head_dim + k);
      }
      weight[j] = rounded(masked_score(s, row, j, rounded(score * s.scale)));
      max = std::fmax(max, weight[j]);
    }
    if (max == -INFINITY) continue;
    for (double& w : weight) sum += w = std::exp(w - max);
    for (double& w : weight) w = rounded(w / sum);
    double* out = &result.out[size_t(row) * s.value_dim];
    double delta = 0;
    for (int c = 0; c < s.value_dim; ++c) {
      for (int j = 0; j < s.keys; ++j) out[c] += weight[j] * data.value.get(j * s.value_dim + c);
      out[c] = rounded(out[c]);
      delta += out[c] * data.grad_out.get(row * s.value_dim + c);
    }
    double* grad = &result.grad_query[size_t(row) * s.head_dim];
    for (int j = 0; j < s.keys; ++j) {
      double grad_weight = 0;
      for (int c = 0; c < s.value_dim; ++c) {
        grad_weight += data.grad_out.get(row * s.value_dim + c) * data.value.get(j * s.value_dim + c);
      }
      const double grad_score = rounded(weight[j] * (rounded(grad_weight) - delta));
      for (int k = 0; k < s.head_dim; ++k) grad[k] += grad_score * data.key.get(j * s.head_dim + k);
    }
    for (int k = 0; k < s.head_dim; ++k) grad[k] = rounded(grad[k] * s.scale);
  }
  return result;
}

double distance(const std::vector<double>& a, const std::vector<double>& b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// fp32 sums are 1e-7 off, a spacing of the 16-bit formats is 1e-3 or more: about one rounding in a thousand
// falls the other way than with fp64 sums, which moves the error vector by a few per cent. 0.2 leaves room.
void expect_like_obvious(const SliceData& data) {
  const AttentionSlice s = data.view();
  Reference ref;
  PlainWorkspace got;
  reference(s, &ref);
  plain(s, &got);
  const Obvious want = obvious_plain(data);
  const size_t out = size_t(s.rows) * s.value_dim, grad = size_t(s.rows) * s.head_dim;
  EXPECT_LE(distance(got.out, want.out, out), 0.2 * distance(want.out, ref.out, out));
  EXPECT_LE(distance(got.grad_query, want.grad_query, grad),
            0.2 * distance(want.grad_query, ref.grad_query, grad));
}

TEST(Plain, AgreesWithTheObviousForm) {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    for (const int rows : {1, 5, 16}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << rows);
      SliceData data({dtype, rows, 333, 64, 40, true});
      expect_like_obvious(data);
      data.causal();
      expect_like_obvious(data);
    }
  }
}

TEST(Plain, AgreesWithTheObviousFormUnderMasks) {
  SliceData data({DType::kBf16, 9, 150, 32, 32, true});
  data.mask = PackedArray(DType::kBf16, 9 * 150);
  data.mask.fill([&] { return data.normal(data.engine) < 0 ? -INFINITY : 0.75; });
  for (int key = 0; key < 150; ++key) data.mask.set(3 * 150 + key, -INFINITY);
  expect_like_obvious(data);
  PlainWorkspace got;
  plain(data.view(), &got);
  for (int c = 0; c < 32; ++c) {
    EXPECT_EQ(got.out[3 * 32 + c], 0);
    EXPECT_EQ(got.grad_query[3 * 32 + c], 0);
  }
}

TEST(Plain, ResultsAreValuesOfTheFormat) {
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
    SliceData data({dtype, 16, 200, 64, 64, true});
    PlainWorkspace got;
    plain(data.view(), &got);
    for (int i = 0; i < 16 * 64; ++i) {
      ASSERT_EQ(got.out[i], round_to(dtype, got.out[i]));
      ASSERT_EQ(got.grad_query[i], round_to(dtype, got.grad_query[i]));
    }
  }
}

// Subnormal fp16 values and overflow to infinity go through the same roundings.
TEST(Plain, RoundsTheEndsOfFp16) {
  SliceData tiny({DType::kFp16, 16, 64, 8, 8, true});
  tiny.value.fill([&] { return 3e-7 * tiny.normal(tiny.engine); });
  expect_like_obvious(tiny);
  SliceData huge({DType::kFp16, 2, 64, 8, 8, false});
  huge.query.fill([] { return 250.0; });
  huge.key.fill([] { return 250.0; });  // scores 250^2 sqrt(8), beyond 65504
  PlainWorkspace got;
  plain(huge.view(), &got);
  EXPECT_TRUE(std::isnan(got.out[0]));
}

// Relative to N(0, 1) rows: a few times the unit roundoff of the format, never zero.
TEST(Plain, NoiseFloorPerFormat) {
  for (const auto& [dtype, low, high] : {std::tuple{DType::kBf16, 1e-3, 1e-2},
                                         {DType::kFp16, 1e-4, 1e-3},
                                         {DType::kFp32, 1e-8, 2e-6},
                                         {DType::kFp64, 0.0, 1e-14}}) {
    SliceData data({dtype, 16, 1000, 64, 64, false});
    Reference ref;
    PlainWorkspace got;
    reference(data.view(), &ref);
    plain(data.view(), &got);
    const std::vector<double> zero(16 * 64);
    const double relative = distance(got.out, ref.out, 16 * 64) / distance(ref.out, zero, 16 * 64);
    EXPECT_GE(relative, low) << name_of(dtype);
    EXPECT_LE(relative, high) << name_of(dtype);
  }
}

}  // namespace
}  // namespace foreshock
