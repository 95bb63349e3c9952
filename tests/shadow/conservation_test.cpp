#include "shadow/conservation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "tests/shadow/column_data.h"

namespace foreshock {
namespace {

// A call on 16 keys, all of them sampled, with the gradients of fused attention.
struct WholeCall {
  explicit WholeCall(DType dtype, bool is_causal = false, uint64_t seed = 1)
      : data({.dtype = dtype, .heads = 4, .queries = 16, .is_causal = is_causal}, 0, seed) {
    compute();
  }
  void add_mask(DType type, const std::function<double(size_t, int)>& term) {
    data.add_mask(type, term);
    compute();
  }
  void compute() {
    ColumnReference reference;
    compute_floors(data.view(), &reference);
    for (size_t n = 0; n < reference.fused.grad_key.size(); ++n)
      data.grad_key.set(n, reference.fused.grad_key[n]);
    for (size_t n = 0; n < reference.fused.grad_value.size(); ++n)
      data.grad_value.set(n, reference.fused.grad_value[n]);
  }

  ConservationRatios judged() {
    const KeyColumns c = data.view();
    const int64_t dim = c.head_dim;
    const TensorView of_keys{c.grad_key, c.dtype, {1, 1, 16, dim}, {0, 0, dim, 1}};
    const TensorView of_values{c.grad_value, c.dtype, {1, 1, 16, dim}, {0, 0, dim, 1}};
    sums.assign(key_sum_count(64, 64), {});
    sum_over_keys(of_keys, of_keys, of_values, 0, 0, sums.data());
    KeyColumns with_sums = c;
    with_sums.sums = sums.data();
    with_sums.keys = 16;
    return conservation_of(with_sums);
  }

  void drop_key(int key) {
    for (size_t d = 0; d < 64; ++d) {
      data.grad_key.set(size_t(key) * 64 + d, 0);
      data.grad_value.set(size_t(key) * 64 + d, 0);
    }
  }

  ColumnData data;
  std::vector<ColumnSum> sums;
};

TEST(Conservation, RoundingsOfASoundKernelAreWithinTheTolerance) {
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp64})
    for (const bool is_causal : {false, true})
      for (uint64_t seed = 1; seed <= 8; ++seed) {
        const ConservationRatios ratios = WholeCall(dtype, is_causal, seed).judged();
        ASSERT_TRUE(ratios.grad_key && ratios.grad_value);
        EXPECT_LT(*ratios.grad_key, 1) << name_of(dtype) << seed;
        EXPECT_LT(*ratios.grad_value, 1) << name_of(dtype) << seed;
        EXPECT_GT(*ratios.grad_key, 0) << name_of(dtype) << seed;
      }
}

// Query rows 0 to 2 of each head see no key; the others see all but the last three keys.
double padding(size_t row, int key) { return row % 16 < 3 || key > 12 ? -INFINITY : 0; }

void set_gradients_without_keys(WholeCall* call, double value) {
  for (size_t row = 0; row < 64; ++row)
    for (size_t d = 0; row % 16 < 3 && d < 64; ++d) call->data.grad_out.set(row * 64 + d, value);
}

TEST(Conservation, HoldsUnderAMask) {
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp64})
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      WholeCall call(dtype, false, seed);
      set_gradients_without_keys(&call, 0);  // as in the padding: the loss does not depend on these rows
      call.add_mask(dtype, padding);
      const ConservationRatios ratios = call.judged();
      ASSERT_TRUE(ratios.grad_key && ratios.grad_value) << name_of(dtype);
      EXPECT_LT(*ratios.grad_key, 1) << name_of(dtype) << seed;
      EXPECT_LT(*ratios.grad_value, 1) << name_of(dtype) << seed;
      call.add_mask(dtype, [](size_t row, int key) { return -0.25 * std::abs(int(row % 16) - key); });
      EXPECT_LT(call.judged().grad_value.value(), 1) << name_of(dtype) << seed;
      call.add_mask(dtype, padding);
      call.drop_key(9);
      EXPECT_GT(call.judged().grad_key.value(), 10) << name_of(dtype);
      EXPECT_GT(call.judged().grad_value.value(), 10) << name_of(dtype);
    }
}

TEST(Conservation, RowsThatMaySeeNoKeyAreNotSummed) {
  WholeCall call(DType::kBf16);
  call.add_mask(DType::kBf16, padding);
  EXPECT_FALSE(call.judged().grad_value) << "out is 0: no key, or values of 0";
  for (size_t row = 0; row < 64; ++row)
    if (row % 16 < 3) call.data.log_sum_exp.set(row, row % 2 == 0 ? INFINITY : -INFINITY);
  EXPECT_LT(call.judged().grad_value.value(), 1) << "such a row has no weights";
  EXPECT_LT(call.judged().grad_key.value(), 1);
}

TEST(Conservation, RowHiddenByTheMostNegativeNumberGivesNoFigure) {
  // Added to it, the scores vanish: log_sum_exp is this number, and each weight is 1 instead of 1 / 16.
  for (const double lowest : {-0x1.fffffep127, -0x1.fep127}) {
    WholeCall call(DType::kFp32);
    call.add_mask(DType::kFp32, [&](size_t row, int) { return row % 16 < 3 ? lowest : 0; });
    EXPECT_FALSE(call.judged().grad_value || call.judged().grad_key);
    set_gradients_without_keys(&call, 0);
    call.compute();
    EXPECT_LT(call.judged().grad_value.value(), 1);
    EXPECT_LT(call.judged().grad_key.value(), 1);
  }
}

TEST(Conservation, OneOfTheIdentitiesHoldsUnderDropoutAndOneUnderASoftCap) {
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp64})
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      WholeCall dropped(dtype, seed % 2 == 0, seed), capped(dtype, seed % 2 == 0, seed);
      dropped.data.drop(seed < 3 ? 0.1 : 0.6);
      dropped.compute();
      capped.data.cap(seed < 3 ? 50 : 0.5);
      capped.compute();
      EXPECT_FALSE(dropped.judged().grad_value || capped.judged().grad_key);
      EXPECT_LT(dropped.judged().grad_key.value(), 1) << name_of(dtype) << seed;
      EXPECT_LT(capped.judged().grad_value.value(), 1) << name_of(dtype) << seed;
      dropped.drop_key(9);
      capped.drop_key(9);
      EXPECT_GT(dropped.judged().grad_key.value(), 8) << name_of(dtype) << seed;
      EXPECT_GT(capped.judged().grad_value.value(), 10) << name_of(dtype) << seed;
    }
}

TEST(Conservation, OneKeyLeftOutIsFarBeyondTheTolerance) {
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp64}) {
    WholeCall call(dtype);
    call.drop_key(9);
    EXPECT_GT(call.judged().grad_key.value_or(0), 20) << name_of(dtype);
    EXPECT_GT(call.judged().grad_value.value_or(0), 20) << name_of(dtype);
  }
}

TEST(Conservation, BlockOfKeysWithTheSumsOfAllConservesNothing) {
  WholeCall call(DType::kBf16);
  for (int key = 8; key < 16; ++key) call.drop_key(key);
  EXPECT_GT(call.judged().grad_value.value_or(0), 20);
}

TEST(Conservation, NumbersThatAreNotFiniteAreNotCompared) {
  WholeCall call(DType::kBf16);
  call.data.grad_key.set(5, NAN);
  EXPECT_FALSE(call.judged().grad_key);
  EXPECT_TRUE(call.judged().grad_value);
  EXPECT_FALSE(conservation_of(call.data.view()).grad_value) << "no sums are given";
}

TEST(Conservation, SumsInStorageFormatAreRoundedOncePerBlockOfQueries) {
  KeyColumns c;
  c.dtype = DType::kBf16;
  c.heads = 2;
  for (const auto& [queries, blocks] : {std::pair(31, 1), {100, 4}, {256, 4}, {1024, 4}, {4096, 16}}) {
    c.queries = queries;
    EXPECT_EQ(roundings_of_sum(c), 2 * blocks) << queries;
  }
  c.dtype = DType::kFp32;
  EXPECT_EQ(roundings_of_sum(c), 8192);
}

}  // namespace
}  // namespace foreshock
