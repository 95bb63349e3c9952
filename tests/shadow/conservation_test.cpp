#include "shadow/conservation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/shadow/column_data.h"

namespace foreshock {
namespace {

// A call on 16 keys, all of them sampled, with the gradients of fused attention.
struct WholeCall {
  explicit WholeCall(DType dtype, bool is_causal = false, uint64_t seed = 1)
      : data({.dtype = dtype, .heads = 4, .queries = 16, .is_causal = is_causal}, 0, seed) {
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
