// Weights and the ring of memory that their records go into.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "libmonitor/weights.h"
#include "tests/libmonitor/described_weights.h"

namespace foreshock {
namespace {

// Two ranks whose parts differ take the same tensors at the same steps.
TEST(WeightRing, TurnsFollowFromTheWholeTensorsAlone) {
  std::vector<char> memory(1 << 20);
  segment::Control control = {};
  const auto turns = [&](int64_t part, uint64_t interval) {
    WeightSampler follower;
    follower.attach(reinterpret_cast<segment::TensorRing*>(memory.data()), memory.size(), &control,
                    {interval, true, true}, 1 << 20);
    std::vector<foreshock_weight> weights(40, named("w", 100, 7));
    for (auto& weight : weights) weight.part[0] = part;
    EXPECT_EQ(follower.name_tensors(weights.data(), weights.size()), 40);
    std::set<std::pair<int64_t, uint32_t>> found;
    for (int64_t step = 0; step < 64; ++step) {
      uint32_t numbers[64];
      const size_t count = follower.find_due(step, 1, numbers, 64);
      EXPECT_LE(count, 40 / interval + 1) << "spread evenly";
      for (size_t n = 0; n < count; ++n) found.emplace(step, numbers[n]);
    }
    EXPECT_EQ(found.size(), 40 * 64 / interval);
    return found;
  };
  EXPECT_EQ(turns(100, 16), turns(33, 16));
}

// A record of 3/8 of the ring, while an agent reads at once. Two fit before the end, and then none does.
TEST(WeightRing, ATensorThatDoesNotFitBeforeTheEndBeginsAtTheFront) {
  alignas(64) static char memory[1 << 17];
  const std::vector<float> values(4096, 1.5f);
  const foreshock_weight weight = named("w", 64, 64);
  const auto follow = [&](uint64_t bytes, int64_t steps) {
    std::memset(memory, 0, sizeof memory);
    auto* ring = reinterpret_cast<segment::TensorRing*>(memory);
    segment::Control control = {};
    WeightSampler follower;
    follower.attach(ring, sizeof(segment::TensorRing) + bytes, &control, {1, true, true}, 1 << 20);
    EXPECT_EQ(follower.name_tensors(&weight, 1), 1);
    const foreshock_weight_state state = state_of(0, values.data(), 64, 64);
    for (int64_t step = 1; step <= steps; ++step) {
      follower.after_step(&state, 1, step);
      control.tensor_cursor = ring->written;
    }
    EXPECT_EQ(ring->snapshots_taken, static_cast<uint64_t>(steps));
    return ring->written;
  };
  const uint64_t record = follow(1 << 16, 1);
  follow(record * 8 / 3, 12);
}

// A part of it is compared, spread evenly: a change of a half everywhere is a half wherever it is looked at.
TEST(WeightRing, OfATensorLargerThanTheRoomForCopiesAPartIsCompared) {
  alignas(64) static char memory[1 << 20];
  std::memset(memory, 0, sizeof memory);
  auto* ring = reinterpret_cast<segment::TensorRing*>(memory);
  segment::Control control = {};
  WeightSampler follower;
  follower.attach(ring, sizeof memory, &control, {1, true, true}, 4 * CopiesBeforeStep::kPiece);
  const foreshock_weight weights[] = {named("large", 400, 100), named("small", 10, 10)};
  ASSERT_EQ(follower.name_tensors(weights, 2), 2);
  std::vector<float> large(40000, 1), small(100, 1);
  uint32_t due[2];
  ASSERT_EQ(follower.find_due(5, 1, due, 2), 2u);
  const foreshock_weight_state states[] = {state_of(0, large.data(), 400, 100),
                                           state_of(1, small.data(), 10, 10)};
  follower.before_step(states, 2, 5);
  for (float& value : large) value += 0.5f;
  for (float& value : small) value += 0.25f;
  follower.after_step(states, 2, 5);
  ASSERT_EQ(ring->snapshots_taken, 2u);
  const auto reductions_at = [&](uint64_t at) {
    const auto* record = reinterpret_cast<const segment::TensorRecord*>(memory + sizeof *ring + at);
    return reinterpret_cast<const double*>(reinterpret_cast<const char*>(record) +
                                           record->payload[segment::kTensorReductions].offset);
  };
  const double* of_large = reductions_at(0);
  const double compared =
      3 * CopiesBeforeStep::kPiece / sizeof(float);  // the small one has its own piece of room
  EXPECT_EQ(of_large[segment::kUpdateElements], compared);
  EXPECT_EQ(of_large[segment::kUpdateSumMagnitude], 0.5 * compared);
  EXPECT_EQ(of_large[segment::kComparedSumOfSquares], 2.25 * compared);
  EXPECT_EQ(of_large[segment::kSumOfSquares], 2.25 * 40000);
  const auto* first = reinterpret_cast<const segment::TensorRecord*>(memory + sizeof *ring);
  const double* of_small = reductions_at(first->bytes);
  EXPECT_EQ(of_small[segment::kUpdateElements], 100) << "before the large one had its share";
  EXPECT_EQ(of_small[segment::kUpdateSumMagnitude], 25);
}

// To find out anew at every turn that it does not fit would cost a pass over the tensor each time.
TEST(WeightRing, ARecordThatIsTooLargeIsNotTriedAtEveryTurn) {
  alignas(64) static char memory[sizeof(segment::TensorRing) + (1 << 15)];
  std::memset(memory, 0, sizeof memory);
  auto* ring = reinterpret_cast<segment::TensorRing*>(memory);
  segment::Control control = {};
  WeightSampler follower;
  follower.attach(ring, sizeof memory, &control, {1, true, true}, 1 << 20);
  const foreshock_weight weight = named("w", 200, 200);
  ASSERT_EQ(follower.name_tensors(&weight, 1), 1);
  std::vector<float> values(40000);
  for (size_t n = 0; n < values.size(); ++n) values[n] = 1e-30f * std::exp2(static_cast<float>(n) / 300);
  const foreshock_weight_state state = state_of(0, values.data(), 200, 200);
  follower.after_step(&state, 1, 1);
  ASSERT_EQ(ring->skipped[segment::kTensorTooLarge], 1u);
  const long page = sysconf(_SC_PAGESIZE);
  void* closed = mmap(nullptr, values.size() * sizeof(float) / page * page + page, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(closed, MAP_FAILED);
  const foreshock_weight_state unreadable = state_of(0, closed, 200, 200);
  follower.after_step(&unreadable, 1, 2);
  EXPECT_EQ(ring->skipped[segment::kTensorTooLarge], 2u);
  std::fill(values.begin(), values.end(), 1.f);
  for (int64_t step = 3; step < 10; ++step) follower.after_step(&state, 1, step);
  EXPECT_GT(ring->snapshots_taken, 0u) << "it is tried again in the end";
  EXPECT_EQ(ring->due, ring->snapshots_taken + ring->skipped[segment::kTensorTooLarge]);
  munmap(closed, values.size() * sizeof(float) / page * page + page);
}

TEST(WeightRing, WhatIsNotFollowedIsCountedWithItsReason) {
  alignas(64) static char memory[1 << 16];
  const auto unfollowed = [&](uint64_t bytes, bool is_off, std::vector<foreshock_weight> weights) {
    std::memset(memory, 0, sizeof memory);
    auto* ring = reinterpret_cast<segment::TensorRing*>(memory);
    segment::Control control = {};
    WeightSampler follower;
    follower.attach(ring, bytes, &control, {1, true, true}, 1 << 20, is_off);
    const int followed = follower.name_tensors(weights.data(), weights.size());
    EXPECT_EQ(ring->tensors, bytes == sizeof memory ? 1 : 0u);
    EXPECT_EQ(followed > 0, bytes == sizeof memory);
    uint32_t due[8];
    EXPECT_EQ(follower.find_due(1, 1, due, 8), ring->tensors) << "the others have no turn";
    return std::vector<uint64_t>(ring->unfollowed, ring->unfollowed + segment::kTensorUnfollowed);
  };
  std::vector<foreshock_weight> weights(4, named("w", 10, 10));
  for (uint32_t n = 0; n < 4; ++n) weights[n].unfollowed = n;
  using Counts = std::vector<uint64_t>;
  EXPECT_EQ(unfollowed(sizeof memory, false, weights), (Counts{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(unfollowed(segment::kLeastTensorsBytes, false, weights), (Counts{0, 4, 0, 0, 0, 0}));
  EXPECT_EQ(unfollowed(segment::kLeastTensorsBytes, true, weights), (Counts{4, 0, 0, 0, 0, 0}));
}

TEST(WeightRing, TensorsBeyondTheTableAreCounted) {
  alignas(64) static char memory[1 << 16];
  auto* ring = reinterpret_cast<segment::TensorRing*>(memory);
  segment::Control control = {};
  WeightSampler follower;
  follower.attach(ring, sizeof memory, &control, {1, true, true}, 1 << 20);
  const std::vector<foreshock_weight> weights((1 << 16) + 3, named("w", 1, 1));
  EXPECT_EQ(follower.name_tensors(weights.data(), weights.size()), 1 << 16);
  EXPECT_EQ(ring->unfollowed[segment::kUnfollowedTooMany], 3u);
}

}  // namespace
}  // namespace foreshock
