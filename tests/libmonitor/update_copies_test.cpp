#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "libmonitor/weight_measure.h"

namespace foreshock {
namespace {

constexpr uint64_t kFloats = CopiesBeforeStep::kPiece / sizeof(float);

TEST(CopiesBeforeStep, OfALargeTensorPiecesAreKeptFromAllOverIt) {
  CopiesBeforeStep copies;
  copies.reserve(4 * CopiesBeforeStep::kPiece);
  std::vector<float> values(10 * kFloats + 5);
  const auto copy =
      copies.keep(values.data(), values.size() * sizeof(float), DType::kFp32, 4 * CopiesBeforeStep::kPiece);
  // Piece p changes by 2^p: the sum tells which ones were kept. 11 of them, 4 kept: 0, 2, 5, 8.
  for (size_t n = 0; n < values.size(); ++n) values[n] += static_cast<float>(1 << n / kFloats);
  uint64_t elements = 0;
  const Update update = copies.update_since(copy, values.data(), &elements);
  EXPECT_EQ(elements, 4 * kFloats);
  EXPECT_EQ(update.sum_magnitude, static_cast<double>(kFloats) * (1 + 4 + 32 + 256));
  EXPECT_EQ(update.max_magnitude, 256);
}

TEST(CopiesBeforeStep, OneThatFitsIsKeptWhole) {
  CopiesBeforeStep copies;
  copies.reserve(4 * CopiesBeforeStep::kPiece);
  std::vector<float> values(kFloats + 7, 1);
  const auto copy = copies.keep(values.data(), values.size() * sizeof(float), DType::kFp32, ~uint64_t{0});
  values.back() = 3;
  uint64_t elements = 0;
  const Update update = copies.update_since(copy, values.data(), &elements);
  EXPECT_EQ(elements, values.size());
  EXPECT_EQ(update.sum_magnitude, 2);
}

// A step that was left out is tried again under the same number.
TEST(CopiesBeforeStep, ACopyIsRenewedInItsPlace) {
  CopiesBeforeStep copies;
  copies.reserve(2 * CopiesBeforeStep::kPiece);
  std::vector<float> values(3 * kFloats);
  const auto copy = copies.keep(values.data(), values.size() * sizeof(float), DType::kFp32, ~uint64_t{0});
  ASSERT_TRUE(copies.holds(copy));
  for (float& value : values) value = 1;
  copies.overwrite(copy, values.data());
  for (float& value : values) value = 3;
  uint64_t elements = 0;
  EXPECT_EQ(copies.update_since(copy, values.data(), &elements).sum_magnitude, 2.0 * 2 * kFloats);
  EXPECT_TRUE(copies.holds(copy));
  copies.forget();
  EXPECT_FALSE(copies.holds(copy));
}

TEST(CopiesBeforeStep, WithoutRoomThereIsNone) {
  CopiesBeforeStep copies;
  copies.reserve(CopiesBeforeStep::kPiece);
  const std::vector<float> values(kFloats);
  EXPECT_EQ(copies.keep(values.data(), 100, DType::kFp32, 64).bytes, 0u) << "beyond its share";
  EXPECT_EQ(copies.keep(values.data(), CopiesBeforeStep::kPiece, DType::kFp32, ~uint64_t{0}).bytes,
            CopiesBeforeStep::kPiece);
  EXPECT_EQ(copies.keep(values.data(), 4, DType::kFp32, ~uint64_t{0}).bytes, 0u) << "the room is taken";
  copies.forget();
  EXPECT_EQ(copies.keep(values.data(), 4, DType::kFp32, ~uint64_t{0}).bytes, 4u);
}

TEST(CopiesBeforeStep, SharesFillTheRoomAndNeverMore) {
  const auto share_of = [](uint64_t room, const std::vector<uint64_t>& bytes) {
    return CopiesBeforeStep::share_per_tensor(room, bytes.size(), [&](uint64_t n) { return bytes[n]; });
  };
  EXPECT_EQ(share_of(100, {10, 10, 500}), 80u);
  EXPECT_GE(share_of(100, {10, 20, 30}), 30u) << "all of them fit";
  EXPECT_EQ(share_of(100, {500, 300}), 50u);
  EXPECT_EQ(share_of(100, {}), 100u);
  std::vector<uint64_t> many;
  for (uint64_t n = 1; n < 200; ++n) many.push_back(n * n);
  const uint64_t share = share_of(100000, many);
  uint64_t used = 0;
  for (const uint64_t bytes : many) used += std::min(bytes, share);
  EXPECT_LE(used, 100000u);
  EXPECT_GE(used, 95000u);
}

}  // namespace
}  // namespace foreshock
