#include "shadow/slice.h"

#include <gtest/gtest.h>

#include "tests/shadow/slice_data.h"

namespace foreshock {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

TEST(Mask, KeyLimitAlone) {
  SliceData data({DType::kBf16, 2, 4, 8, 8});
  data.key_limit = {2, 0};
  const AttentionSlice s = data.view();
  EXPECT_EQ(masked_score(s, 0, 1, 5.0), 5);
  EXPECT_EQ(masked_score(s, 0, 2, 5.0), kHidden);
  EXPECT_EQ(masked_score(s, 1, 0, 5.0), kHidden);
}

TEST(Mask, BoolHidesWhereFalse) {
  SliceData data({DType::kBf16, 2, 3, 8, 8});
  data.mask = PackedArray(DType::kBool, 6);
  data.mask.set(4, 1);  // row 1, key 1
  const AttentionSlice s = data.view();
  EXPECT_EQ(masked_score(s, 1, 1, 5.0), 5);
  EXPECT_EQ(masked_score(s, 1, 0, 5.0), kHidden);
  EXPECT_EQ(masked_score(s, 0, 1, 5.0), kHidden);
}

TEST(Mask, AdditiveMasksAddAndTheLimitStillHolds) {
  SliceData data({DType::kBf16, 1, 3, 8, 8});
  data.mask = PackedArray(DType::kFp32, 3);
  data.mask.set(0, -2.5);
  data.mask.set(2, 7);
  data.key_limit = {2};
  const AttentionSlice s = data.view();
  EXPECT_EQ(masked_score(s, 0, 0, 5.0), 2.5);
  EXPECT_EQ(masked_score(s, 0, 2, 5.0), kHidden);
}

TEST(Mask, TileIsKeyMajorWithItsOwnStride) {
  SliceData data({DType::kBf16, 2, 5, 8, 8});
  data.key_limit = {4, 5};
  std::vector<float> scores(3 * 4, 1.0f);  // keys 2, 3, 4 of padded rows
  apply_mask(data.view(), 2, 3, 4, scores.data());
  EXPECT_EQ(scores[1 * 4 + 0], 1);
  EXPECT_EQ(scores[2 * 4 + 0], static_cast<float>(kHidden));
  EXPECT_EQ(scores[2 * 4 + 1], 1);
  EXPECT_EQ(scores[2 * 4 + 2], 1);
}

}  // namespace
}  // namespace foreshock
