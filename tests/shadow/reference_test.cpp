#include "shadow/reference.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <bit>
#include <cstdio>

#include "tests/shadow/quad_attention.h"
#include "tests/shadow/slice_data.h"

namespace foreshock {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Runs `body` once on every compiled instruction set this machine has, naming those it has not.
template <class Body>
void on_every_target(Body body) {
  const int64_t here = reference_targets_here();
  for (int64_t rest = here; rest != 0; rest &= rest - 1) {
    const int64_t target = rest & -rest;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    SCOPED_TRACE(hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

uint64_t bits_of(double x) { return std::isnan(x) ? 0x7ff8000000000000 : std::bit_cast<uint64_t>(x); }

void expect_same_bits(const std::vector<double>& got, const std::vector<double>& want, size_t count,
                      const char* what) {
  ASSERT_GE(got.size(), count);
  ASSERT_GE(want.size(), count);
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(bits_of(got[i]), bits_of(want[i])) << what << "[" << i << "] " << got[i] << " for " << want[i];
  }
}

void expect_bit_equal_everywhere(const SliceData& data) {
  const AttentionSlice s = data.view();
  Reference truth;
  reference_scalar(s, &truth);
  on_every_target([&] {
    Reference fast;
    reference(s, &fast);
    expect_same_bits(fast.out, truth.out, size_t(s.rows) * s.value_dim, "out");
    expect_same_bits(fast.log_sum_exp, truth.log_sum_exp, s.rows, "log_sum_exp");
    expect_same_bits(fast.logit_max, truth.logit_max, s.rows, "logit_max");
    expect_same_bits(fast.logit_abs_max, truth.logit_abs_max, s.rows, "logit_abs_max");
    if (s.mask != nullptr)
      expect_same_bits(fast.product_abs_max, truth.product_abs_max, s.rows, "product_abs_max");
    expect_same_bits(fast.entropy_nats, truth.entropy_nats, s.rows, "entropy_nats");
    for (int r = 0; r < s.rows; ++r) ASSERT_EQ(fast.near_tie[r], truth.near_tie[r]);
    if (!s.backward()) return;
    expect_same_bits(fast.delta, truth.delta, s.rows, "delta");
    expect_same_bits(fast.grad_query, truth.grad_query, size_t(s.rows) * s.head_dim, "grad_query");
    expect_same_bits(fast.given_grad_query, truth.given_grad_query, size_t(s.rows) * s.head_dim, "given");
    expect_same_bits(fast.share, truth.share, s.rows, "share");
    for (int r = 0; r < s.rows; ++r) ASSERT_EQ(fast.partial[r], truth.partial[r]);
  });
}

// What a backward call is given: any output, and a log-sum-exp that covers more keys than the slice has.
SliceData with_given(SliceData data) {
  data.out.fill([&] { return data.normal(data.engine); });
  data.log_sum_exp = PackedArray(DType::kFp32, data.shape.rows);
  Reference ref;
  reference(data.view(), &ref);
  for (int row = 0; row < data.shape.rows; ++row) data.log_sum_exp.set(row, ref.log_sum_exp[row] + 0.3 * row);
  return data;
}

double relative_error(const double* got, const std::vector<Binary128>& exact) {
  Binary128 error = 0, norm = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error += (got[i] - exact[i]) * (got[i] - exact[i]);
    norm += exact[i] * exact[i];
  }
  return static_cast<double>(sqrtq(error / norm));
}

// With u = 2^-53, a score is off by at most (d + 1) u sum |q_k k_k| scale, about 1e-13 for d = 128 and N(0,
// 1) inputs in the worst case and a tenth of that at the square root law; a row of out by twice that and
// (keys + d) u. dQ adds the cancellation in dP - delta, a factor of a few.
constexpr double kTolerance = 1e-13;

void expect_close_to_quad(const SliceData& data) {
  const AttentionSlice s = data.view();
  Reference ref;
  reference(s, &ref);
  for (int row = 0; row < s.rows; row += 5) {
    const QuadRow exact = quad_attention(data, row);
    EXPECT_LE(relative_error(&ref.out[size_t(row) * s.value_dim], exact.out), kTolerance);
    EXPECT_LE(std::fabs(static_cast<double>(ref.log_sum_exp[row] - exact.log_sum_exp)), kTolerance);
    EXPECT_LE(std::fabs(static_cast<double>(ref.entropy_nats[row] - exact.entropy)), kTolerance);
    EXPECT_NEAR(ref.logit_max[row], exact.logit_max, kTolerance);
    EXPECT_NEAR(ref.logit_abs_max[row], exact.logit_abs_max, kTolerance);
    if (s.backward()) {
      EXPECT_LE(relative_error(&ref.grad_query[size_t(row) * s.head_dim], exact.grad_query), kTolerance);
      EXPECT_LE(relative_error(&ref.given_grad_query[size_t(row) * s.head_dim], exact.given_grad_query),
                kTolerance);
    }
  }
}

TEST(Reference, NamesItsInstructionSets) {
  std::printf("[ targets  ] in use: %s; run:", reference_target_name());
  on_every_target([] { std::printf(" %s", reference_target_name()); });
  std::printf("; compiled, not on this machine:");
  for (int64_t rest = reference_targets_compiled() & ~reference_targets_here(); rest != 0; rest &= rest - 1) {
    std::printf(" %s", hwy::TargetName(rest & -rest));
  }
  std::printf("\n");
  EXPECT_NE(reference_targets_here(), 0);
}

TEST(Reference, WithinToleranceOfBinary128) {
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp64}) {
    SCOPED_TRACE(name_of(dtype));
    expect_close_to_quad(SliceData({dtype, 16, 700, 64, 64, true}));
    expect_close_to_quad(with_given(SliceData({dtype, 16, 700, 64, 64, true})));
  }
  expect_close_to_quad(SliceData({DType::kBf16, 16, 300, 128, 128, true}));
}

TEST(Reference, WithinToleranceOfBinary128WithMasks) {
  SliceData causal({DType::kBf16, 16, 400, 64, 64, true});
  causal.causal();
  causal.key_limit[0] = 2;  // one key alone has no dQ to be relative to
  expect_close_to_quad(causal);
  SliceData additive({DType::kFp32, 16, 200, 64, 64, true});
  additive.mask = PackedArray(DType::kFp32, 16 * 200);
  additive.mask.fill(
      [&, i = 0]() mutable { return i++ % 3 == 0 ? -kInfinity : additive.normal(additive.engine); });
  expect_close_to_quad(additive);
}

TEST(Reference, WithinToleranceOfBinary128WithAWindow) {
  for (const DType dtype : {DType::kBf16, DType::kFp64})
    for (const int keys_seen : {2, 47, 200}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << keys_seen);
      SliceData data({dtype, 16, 400, 64, 64, true});
      data.window(keys_seen);
      data.key_limit[0] = 2;  // one key alone has no dQ to be relative to
      expect_close_to_quad(data);
      data.soft_cap = 2;
      expect_close_to_quad(with_given(data));
    }
}

TEST(Reference, BitEqualWithAWindow) {
  for (const int keys_seen : {1, 47, 48, 49, 200}) {
    SCOPED_TRACE(keys_seen);
    SliceData data({DType::kBf16, 13, 331, 32, 40, true});
    data.window(keys_seen);
    expect_bit_equal_everywhere(data);
    data.key_begin[5] = data.key_limit[5];  // a row that sees nothing
    expect_bit_equal_everywhere(with_given(data));
  }
}

TEST(Reference, AWindowWiderThanTheKeysChangesNoBit) {
  SliceData data({DType::kBf16, 13, 331, 32, 40, true});
  data.causal();
  Reference without, with;
  reference(data.view(), &without);
  data.window(331);
  reference(data.view(), &with);
  EXPECT_EQ(with.out, without.out);
  EXPECT_EQ(with.log_sum_exp, without.log_sum_exp);
  EXPECT_EQ(with.grad_query, without.grad_query);
}

TEST(Reference, WithinToleranceOfBinary128UnderDropoutAndSoftCap) {
  for (const DType dtype : {DType::kBf16, DType::kFp64}) {
    SCOPED_TRACE(name_of(dtype));
    for (const double cap : {0.0, 2.0, 50.0})
      for (const double dropout : {0.0, 0.1, 0.9}) {
        SliceData data({dtype, 16, 300, 64, 64, true});
        data.soft_cap = cap;
        if (dropout > 0) data.drop(dropout);
        expect_close_to_quad(data);
        expect_close_to_quad(with_given(data));
      }
  }
}

TEST(Reference, BitEqualUnderDropoutAndSoftCap) {
  for (const DType type : {DType::kBool, DType::kBf16, DType::kFp32, DType::kFp64}) {
    SliceData data({DType::kBf16, 13, 150, 32, 40, true});
    data.drop(0.3, type);
    for (int key = 0; key < 150; ++key) data.kept.set(4 * 150 + key, 0);  // all weights of row 4
    data.mask = PackedArray(DType::kBool, 13 * 150);
    data.mask.fill([&] { return data.normal(data.engine) < 0 ? 0 : 1; });
    data.causal();
    expect_bit_equal_everywhere(data);
    data.soft_cap = type == DType::kBool ? 0.01 : 20;  // 0.01: all scores are far above it
    expect_bit_equal_everywhere(with_given(data));
    data.kept = {};
    expect_bit_equal_everywhere(data);
  }
  for (const double planted : {kInfinity, -kInfinity, kNaN, 3e38, 1e-40})
    for (const int where : {0, 1, 2, 3}) {
      SliceData data({DType::kFp32, 16, 120, 16, 16, true});
      data.soft_cap = 5;
      data.drop(0.5);
      PackedArray* arrays[] = {&data.query, &data.key, &data.value, &data.grad_out};
      arrays[where]->set(37, planted);
      expect_bit_equal_everywhere(data);
    }
}

TEST(Reference, ExtremeDropoutAndSoftCap) {
  SliceData data({DType::kFp32, 3, 60, 8, 8, true});
  data.drop(1 - 0x1p-40);  // drops all of them: kept by hand below
  for (int key = 0; key < 60; ++key) data.kept.set(key, 0);
  data.kept.set(60 + 7, 1);
  Reference ref;
  reference(data.view(), &ref);
  EXPECT_EQ(ref.delta[0], 0);
  for (int c = 0; c < 8; ++c) {
    EXPECT_EQ(ref.out[c], 0) << "a row of which no weight is kept";
    EXPECT_EQ(ref.grad_query[c], 0);
    EXPECT_GT(std::fabs(ref.out[8 + c]), 0x1p20 * std::fabs(data.value.get(7 * 8 + c)));
  }
  EXPECT_TRUE(std::isfinite(ref.log_sum_exp[0])) << "scores do not depend on dropout";
  SliceData capped({DType::kFp32, 2, 60, 8, 8, true});
  capped.query.fill([&] { return 1e6 * capped.normal(capped.engine); });
  capped.soft_cap = 1;
  reference(capped.view(), &ref);
  EXPECT_LE(ref.logit_abs_max[0], 1);
  for (int k = 0; k < 8; ++k) EXPECT_EQ(ref.grad_query[k], 0) << "no score has a slope";
}

TEST(Reference, LargeScoresStayAccurate) {
  SliceData data({DType::kFp32, 16, 500, 64, 64, true});
  data.query.fill([&] { return 5 * data.normal(data.engine); });
  // Scores five times larger: five times the error.
  const AttentionSlice s = data.view();
  Reference ref;
  reference(s, &ref);
  const QuadRow exact = quad_attention(data, 3);
  EXPECT_LE(relative_error(&ref.out[size_t(3) * s.value_dim], exact.out), 5 * kTolerance);
  EXPECT_GT(ref.logit_abs_max[3], 10);
}

TEST(Reference, BitEqualOverLengthsAndRows) {
  constexpr int kTile = kReferenceTile;
  for (const int keys :
       {1, 2, 3, kTile - 1, kTile, kTile + 1, 2 * kTile - 1, 2 * kTile, 2 * kTile + 7, 331}) {
    for (const int rows : {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16}) {
      SCOPED_TRACE(testing::Message() << keys << " keys, " << rows << " rows");
      SliceData data({DType::kBf16, rows, keys, 24, 24, true}, keys * 100 + rows);
      expect_bit_equal_everywhere(data);
      data.causal();
      expect_bit_equal_everywhere(data);
      expect_bit_equal_everywhere(with_given(data));
    }
  }
}

TEST(Reference, BitEqualOverHeadDimensionsAndFormats) {
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp64}) {
    for (const int dim : {1, 5, 8, 24, 48, 64, 80, 128}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << dim);
      expect_bit_equal_everywhere(SliceData({dtype, 16, 130, dim, dim, true}, dim));
      expect_bit_equal_everywhere(SliceData({dtype, 7, 65, dim, 192 - dim, true}, dim));
    }
  }
}

TEST(Reference, BitEqualWithMasks) {
  for (const DType type : {DType::kBool, DType::kBf16, DType::kFp32}) {
    SliceData data({DType::kBf16, 13, 150, 32, 40, true});
    data.mask = PackedArray(type, 13 * 150);
    const double hidden = type == DType::kBool ? 0 : -kInfinity;
    data.mask.fill([&] { return data.normal(data.engine) < 0 ? hidden : 1.5; });
    for (int key = 0; key < 150; ++key) data.mask.set(4 * 150 + key, hidden);  // row 4 sees nothing
    data.key_limit[2] = 0;
    data.key_limit[3] = 49;
    expect_bit_equal_everywhere(data);
    data = with_given(data);
    for (const auto& [row, given] : {std::pair{0, kInfinity}, {1, -kInfinity}, {5, kNaN}, {6, -1e30}})
      data.log_sum_exp.set(row, given);
    expect_bit_equal_everywhere(data);
  }
}

TEST(Reference, BitEqualWithExtremeScoresAndNonFiniteInputs) {
  for (const double planted : {kInfinity, -kInfinity, kNaN, 3e38, -3e38, 1e-40}) {
    SCOPED_TRACE(planted);
    for (const int where : {0, 1, 2, 3}) {
      SliceData data({DType::kFp32, 16, 120, 16, 16, true});
      PackedArray* arrays[] = {&data.query, &data.key, &data.value, &data.grad_out};
      arrays[where]->set(37, planted);
      expect_bit_equal_everywhere(data);
      data.causal();
      expect_bit_equal_everywhere(data);
    }
  }
  SliceData steep({DType::kFp32, 16, 200, 16, 16, true});
  steep.query.fill([&] { return 100 * steep.normal(steep.engine); });  // weights down into the subnormals
  expect_bit_equal_everywhere(steep);
}

TEST(Reference, RowWithoutKeysIsZero) {
  SliceData data({DType::kBf16, 3, 60, 8, 8, true});
  data.key_limit[1] = 0;
  Reference ref;
  reference(data.view(), &ref);
  EXPECT_EQ(ref.log_sum_exp[1], -kInfinity);
  EXPECT_EQ(ref.logit_max[1], -kInfinity);
  EXPECT_EQ(ref.logit_abs_max[1], 0);
  EXPECT_EQ(ref.entropy_nats[1], 0);
  EXPECT_EQ(ref.near_tie[1], 0);
  for (int c = 0; c < 8; ++c) {
    EXPECT_EQ(ref.out[8 + c], 0);
    EXPECT_EQ(ref.grad_query[8 + c], 0);
    EXPECT_NE(ref.out[c], 0);
  }
}

TEST(Reference, OneKeyGivesItsValue) {
  SliceData data({DType::kBf16, 2, 1, 8, 8, true});
  Reference ref;
  reference(data.view(), &ref);
  for (int c = 0; c < 8; ++c) EXPECT_EQ(ref.out[c], data.value.get(c));
  EXPECT_EQ(ref.entropy_nats[0], 0);
  EXPECT_EQ(ref.log_sum_exp[0], ref.logit_max[0]);
}

TEST(Reference, NonFiniteInputsReachTheRowsThatSeeThem) {
  SliceData data({DType::kFp32, 4, 60, 8, 8, true});
  data.query.set(8, kNaN);        // row 1
  data.query.set(16, kInfinity);  // row 2: scores of either infinity
  Reference ref;
  reference(data.view(), &ref);
  EXPECT_TRUE(std::isfinite(ref.out[0]));
  EXPECT_TRUE(std::isnan(ref.out[8]));
  EXPECT_TRUE(std::isnan(ref.log_sum_exp[1]));
  EXPECT_TRUE(std::isnan(ref.out[16]));
  EXPECT_TRUE(std::isnan(ref.grad_query[8]));
}

TEST(Reference, NearTieWindow) {
  // One-dimensional heads with scale 1: the scores are the keys.
  SliceData data({DType::kFp64, 1, 50, 1, 1, false});
  data.query.set(0, 1);
  data.key.fill([] { return -3.0; });
  data.key.set(7, 1.0);
  for (const auto& [second, expected] :
       {std::pair{1.0, 1}, {1 - 0x1p-9, 1}, {1 - 0x1.001p-9, 0}, {-2.0, 0}}) {
    data.key.set(49, second);  // in another tile than the maximum
    Reference ref;
    reference(data.view(), &ref);
    EXPECT_EQ(ref.near_tie[0], expected) << second;
  }
}

TEST(Reference, EntropyOfFlatRowIsLogOfKeys) {
  SliceData data({DType::kBf16, 1, 500, 8, 8, false});
  data.query.fill([] { return 0.0; });
  Reference ref;
  reference(data.view(), &ref);
  // The sum of 500 ones is exact; log and one division remain.
  EXPECT_NEAR(ref.entropy_nats[0], std::log(500.0), 4e-15);
}

uint64_t hash_bits(uint64_t hash, const std::vector<double>& values, size_t count) {
  for (size_t i = 0; i < count; ++i) hash = (hash ^ bits_of(values[i])) * 0x100000001b3;
  return hash;
}

// Inputs by integer arithmetic only, so that they are the same everywhere. If this fails, the bits of the
// reference have changed: raise kReferenceVersion, then put the new number here.
TEST(Reference, BitsOfVersionTwo) {
  ASSERT_EQ(kReferenceVersion, 2);
  SliceData data({DType::kBf16, 13, 331, 72, 40, true});
  uint64_t state = 1;
  auto draw = [&] {
    state = state * 6364136223846793005 + 1442695040888963407;
    return static_cast<double>(static_cast<int64_t>(state) >> 40) * 0x1p-22;
  };
  for (PackedArray* array : {&data.query, &data.key, &data.value, &data.grad_out}) array->fill(draw);
  for (int row = 0; row < 13; ++row) data.key_limit[row] = 331 - 20 * row;
  data.out.fill(draw);
  data.log_sum_exp = PackedArray(DType::kFp32, 13);
  data.log_sum_exp.fill([] { return 6.25; });
  AttentionSlice s = data.view();
  s.scale = 0.125;
  Reference ref;
  reference(s, &ref);
  uint64_t hash = 0xcbf29ce484222325;
  hash = hash_bits(hash, ref.out, 13 * 40);
  hash = hash_bits(hash, ref.log_sum_exp, 13);
  hash = hash_bits(hash, ref.entropy_nats, 13);
  hash = hash_bits(hash, ref.grad_query, 13 * 72);
  hash = hash_bits(hash, ref.given_grad_query, 13 * 72);
  EXPECT_EQ(hash, 4043241517043298772u);
}

// exp(score - given) summed over the keys of the slice.
TEST(Reference, ShareOfTheGivenLogSumExp) {
  SliceData data({DType::kFp32, 3, 60, 8, 8, true});
  data = with_given(data);
  Reference ref;
  reference(data.view(), &ref);
  for (int row = 0; row < 3; ++row)
    EXPECT_NEAR(ref.share[row], std::exp(ref.log_sum_exp[row] - data.log_sum_exp.get(row)), 1e-14);
  EXPECT_LT(ref.share[2], 0.6);
  EXPECT_EQ(ref.partial[0], 0);
  EXPECT_EQ(ref.partial[2], 1);
}

TEST(Reference, NoKeysAtAll) {
  SliceData data({DType::kBf16, 2, 0, 8, 8, true});
  expect_bit_equal_everywhere(data);
  Reference ref;
  reference(data.view(), &ref);
  EXPECT_EQ(ref.log_sum_exp[1], -kInfinity);
}

TEST(Reference, AllocatesNothingOnceWarm) {
  SliceData large({DType::kBf16, 16, 300, 64, 64, true}), small({DType::kBf16, 5, 100, 32, 16, true});
  Reference ref;
  reference(large.view(), &ref);
  const double* scratch = ref.scratch.data();
  const double* out = ref.out.data();
  reference(small.view(), &ref);
  reference(large.view(), &ref);
  EXPECT_EQ(ref.scratch.data(), scratch);
  EXPECT_EQ(ref.out.data(), out);
}

}  // namespace
}  // namespace foreshock
