#include <gtest/gtest.h>

#include "shadow/reference.h"
#include "tests/shadow/slice_data.h"
#include "tests/support/variations.h"

namespace foreshock {
namespace {

struct Obvious {
  std::vector<double> out, grad_query;
};

enum class Kind { kPlain, kFused };

// The same roundings written down row by row, with sums in fp64.
Obvious obvious_floor(const SliceData& data, const Reference& reference, Kind kind) {
  const AttentionSlice s = data.view();
  const bool is_plain = kind == Kind::kPlain;
  auto rounded = [&](double x) { return round_to(s.dtype, x); };
  auto rounded_if_plain = [&](double x) { return is_plain ? rounded(x) : x; };
  Obvious result{std::vector<double>(size_t(s.rows) * s.value_dim),
                 std::vector<double>(size_t(s.rows) * s.head_dim)};
  for (int row = 0; row < s.rows; ++row) {
    std::vector<double> score(s.keys), weight(s.keys), slope(s.keys, 1), keep(s.keys);
    double max = -INFINITY, sum = 0;
    for (int j = 0; j < s.keys; ++j) {
      for (int k = 0; k < s.head_dim; ++k) {
        score[j] += data.query.get(row * s.head_dim + k) * data.key.get(j * s.head_dim + k);
      }
      score[j] = rounded_if_plain(score[j] * s.scale);
      if (s.soft_cap != 0) {
        double tanh = rounded_if_plain(std::tanh(rounded_if_plain(score[j] / s.soft_cap)));
        if (!is_plain && size_of(s.dtype) == 2) tanh = round_to(DType::kFp16, tanh);
        score[j] = rounded_if_plain(s.soft_cap * tanh);
        slope[j] = 1 - tanh * tanh;
      }
      keep[j] = is_kept(s, size_t(row) * s.keys + j) ? rounded_if_plain(keep_factor(s)) : 0;
      score[j] = rounded_if_plain(masked_score(s, row, j, score[j]));
      max = std::fmax(max, score[j]);
    }
    if (max == -INFINITY) continue;
    for (int j = 0; j < s.keys; ++j) sum += weight[j] = std::exp(score[j] - max);
    double* out = &result.out[size_t(row) * s.value_dim];
    for (int c = 0; c < s.value_dim; ++c) {
      for (int j = 0; j < s.keys; ++j) {
        const double w =
            is_plain ? rounded(rounded(weight[j] / sum) * keep[j]) : rounded(weight[j]) * keep[j];
        out[c] += w * data.value.get(j * s.value_dim + c);
      }
      out[c] = rounded(is_plain ? out[c] : out[c] / sum);
    }
    if (!s.backward()) continue;
    const double given = data.log_sum_exp.size() > 0 ? data.log_sum_exp.get(row) : reference.log_sum_exp[row];
    const bool is_partial = given > reference.log_sum_exp[row] + 0.01;
    double delta = 0;
    for (int c = 0; c < s.value_dim; ++c)
      delta += (is_plain && !is_partial ? out[c] : data.out.get(row * s.value_dim + c)) *
               data.grad_out.get(row * s.value_dim + c);
    const double share = is_partial ? std::exp(reference.log_sum_exp[row] - given) : 1;
    double* grad = &result.grad_query[size_t(row) * s.head_dim];
    for (int j = 0; j < s.keys; ++j) {
      double grad_weight = 0;
      for (int c = 0; c < s.value_dim; ++c) {
        grad_weight += data.grad_out.get(row * s.value_dim + c) * data.value.get(j * s.value_dim + c);
      }
      const double w = is_plain ? rounded(weight[j] / sum * share) : std::exp(score[j] - given);
      grad_weight = rounded_if_plain(rounded_if_plain(grad_weight) * keep[j]);
      double grad_score = w * (grad_weight - delta);
      if (is_plain && s.soft_cap != 0)
        grad_score = rounded(rounded(rounded(grad_score) * s.soft_cap) * slope[j]) / s.soft_cap;
      else
        grad_score *= slope[j];
      grad_score = rounded(grad_score);
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

NoiseFloors floors_of(const SliceData& data, Reference* ref) {
  NoiseFloors floors;
  reference(data.view(), ref);
  compute_noise_floors(data.view(), *ref, &floors);
  return floors;
}

// fp32 sums are 1e-7 off, a spacing of the 16-bit formats is 1e-3 or more: about one rounding in a thousand
// falls the other way than with fp64 sums, which moves the error vector by a few per cent. 0.2 leaves room.
void expect_like_obvious(SliceData data) {
  Reference ref;
  reference(data.view(), &ref);
  if (data.shape.backward)  // as stored by a forward pass
    for (size_t i = 0; i < data.out.size(); ++i) data.out.set(i, ref.out[i]);
  const NoiseFloors got = floors_of(data, &ref);
  const size_t out = size_t(data.shape.rows) * data.shape.value_dim,
               grad = size_t(data.shape.rows) * data.shape.head_dim;
  for (const Kind kind : {Kind::kPlain, Kind::kFused}) {
    const Obvious want = obvious_floor(data, ref, kind);
    const FloorRows& rows = kind == Kind::kPlain ? got.plain : got.fused;
    std::vector<double> exact = ref.grad_query;
    for (int row = 0; data.shape.backward && row < data.shape.rows; ++row)
      if (ref.partial[row] != 0)
        std::copy_n(&ref.given_grad_query[size_t(row) * data.shape.head_dim], data.shape.head_dim,
                    &exact[size_t(row) * data.shape.head_dim]);
    if (data.shape.backward)
      EXPECT_LE(distance(rows.grad_query, want.grad_query, grad),
                0.2 * distance(want.grad_query, kind == Kind::kPlain ? exact : ref.given_grad_query, grad));
    else
      EXPECT_LE(distance(rows.out, want.out, out), 0.2 * distance(want.out, ref.out, out));
  }
}

TEST(NoiseFloor, AgreesWithTheObviousForm) {
  int variation = 0;
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    for (const int rows : {1, 5, 16}) {
      for (const bool backward : {false, true}) {
        if (variation++ % test::kVariationStep != 0) continue;
        SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << rows << " " << backward);
        SliceData data({dtype, rows, 333, 64, 40, backward});
        expect_like_obvious(data);
        data.causal();
        expect_like_obvious(data);
        data.log_sum_exp = PackedArray(DType::kFp32, rows);
        data.log_sum_exp.fill([] { return 7.5; });  // of more keys than the slice has
        expect_like_obvious(data);
      }
    }
  }
}

TEST(NoiseFloor, AgreesWithTheObviousFormWithAWindow) {
  for (const bool backward : {false, true})
    for (const int keys_seen : {30, 100}) {
      SCOPED_TRACE(testing::Message() << backward << " " << keys_seen);
      SliceData data({DType::kBf16, 9, 333, 32, 32, backward});
      data.window(keys_seen);
      expect_like_obvious(data);
    }
}

TEST(NoiseFloor, AgreesWithTheObviousFormUnderMasks) {
  for (const bool backward : {false, true}) {
    SliceData data({DType::kBf16, 9, 150, 32, 32, backward});
    data.mask = PackedArray(DType::kBf16, 9 * 150);
    data.mask.fill([&] { return data.normal(data.engine) < 0 ? -INFINITY : 0.75; });
    for (int key = 0; key < 150; ++key) data.mask.set(3 * 150 + key, -INFINITY);
    expect_like_obvious(data);
    Reference ref;
    const NoiseFloors got = floors_of(data, &ref);
    for (const FloorRows& rows : {got.plain, got.fused})
      for (int c = 0; c < 32; ++c) EXPECT_EQ((backward ? rows.grad_query : rows.out)[3 * 32 + c], 0);
  }
}

TEST(NoiseFloor, AgreesWithTheObviousFormUnderDropoutAndSoftCap) {
  for (const bool backward : {false, true})
    for (const auto& [dropout, cap] :
         {std::pair(0.1, 0.0), {0.9, 0.0}, {0.0, 50.0}, {0.0, 1.0}, {0.1, 2.0}}) {
      SCOPED_TRACE(testing::Message() << dropout << " " << cap << " " << backward);
      SliceData data({DType::kBf16, 9, 150, 32, 32, backward});
      data.soft_cap = cap;
      if (dropout > 0) data.drop(dropout);
      data.causal();
      expect_like_obvious(data);
    }
}

TEST(NoiseFloor, ResultsAreValuesOfTheFormat) {
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
    for (const bool backward : {false, true}) {
      SliceData data({dtype, 16, 200, 64, 64, backward});
      Reference ref;
      const NoiseFloors got = floors_of(data, &ref);
      for (const FloorRows& rows : {got.plain, got.fused}) {
        const std::vector<double>& values = backward ? rows.grad_query : rows.out;
        for (int i = 0; i < 16 * 64; ++i) ASSERT_EQ(values[i], round_to(dtype, values[i]));
      }
    }
  }
}

// Rounding a score of 120 to bf16 moves it by up to 0.25: the weights of plain err by a tenth, those of fused
// by the rounding of weights alone.
TEST(NoiseFloor, LargeScoresRaiseThePlainFloorOnly) {
  SliceData data({DType::kBf16, 16, 500, 64, 64, false});
  for (int row = 0; row < 16; ++row) data.query.set(row * 64, 1);
  for (int key = 0; key < 500; ++key) data.key.set(key * 64, -120 * 8);
  Reference ref;
  const NoiseFloors got = floors_of(data, &ref);
  const std::vector<double> zero(16 * 64);
  const double norm = distance(ref.out, zero, 16 * 64);
  EXPECT_GT(distance(got.plain.out, ref.out, 16 * 64), 0.05 * norm);
  EXPECT_LT(distance(got.fused.out, ref.out, 16 * 64), 0x1p-8 * norm);
}

// Subnormal fp16 values and overflow to infinity go through the same roundings.
TEST(NoiseFloor, RoundsTheEndsOfFp16) {
  SliceData tiny({DType::kFp16, 16, 64, 8, 8, true});
  tiny.value.fill([&] { return 3e-7 * tiny.normal(tiny.engine); });
  expect_like_obvious(tiny);
  SliceData huge({DType::kFp16, 2, 64, 8, 8, false});
  huge.query.fill([] { return 250.0; });
  huge.key.fill([] { return 250.0; });  // scores 250^2 sqrt(8), beyond 65504
  Reference ref;
  EXPECT_TRUE(std::isnan(floors_of(huge, &ref).plain.out[0]));
}

// Relative to N(0, 1) rows: a few times the unit roundoff of the format, never zero.
TEST(NoiseFloor, NoiseFloorPerFormat) {
  for (const auto& [dtype, low, high] : {std::tuple{DType::kBf16, 1e-3, 1e-2},
                                         {DType::kFp16, 1e-4, 1e-3},
                                         {DType::kFp32, 1e-8, 2e-6},
                                         {DType::kFp64, 0.0, 1e-14}}) {
    SliceData data({dtype, 16, 1000, 64, 64, false});
    Reference ref;
    const NoiseFloors got = floors_of(data, &ref);
    const std::vector<double> zero(16 * 64);
    for (const FloorRows& rows : {got.plain, got.fused}) {
      const double relative = distance(rows.out, ref.out, 16 * 64) / distance(ref.out, zero, 16 * 64);
      EXPECT_GE(relative, low) << name_of(dtype);
      EXPECT_LE(relative, high) << name_of(dtype);
    }
  }
}

}  // namespace
}  // namespace foreshock
