#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "libmonitor/cuda_driver.h"

namespace foreshock {
namespace {

constexpr uint64_t kUnit = StagingRing::kAlign;

TEST(StagingRing, HandsOutInOrderAndWrapsAround) {
  uint64_t words[4] = {};
  StagingRing ring;
  StagingRing::FreeRange place;
  ring.reset(4 * kUnit);
  ASSERT_TRUE(ring.find(2 * kUnit, &place));
  EXPECT_EQ(place.offset, 0u);
  ring.commit(&words[0], 2);
  ASSERT_TRUE(ring.find(1, &place)) << "rounded up to a unit";
  EXPECT_EQ(place.offset, 2 * kUnit);
  ring.commit(&words[1], 4);
  EXPECT_FALSE(ring.find(2 * kUnit, &place)) << "only one is left behind it, none before";
  words[0] = 1;
  EXPECT_FALSE(ring.find(2 * kUnit, &place)) << "the slot is still being written";
  words[0] = 2;
  ASSERT_TRUE(ring.find(2 * kUnit, &place));
  EXPECT_EQ(place.offset, 0u);
  ring.commit(&words[2], 6);
  EXPECT_FALSE(ring.find(1, &place)) << "the end is left out until what was before it has gone";
  words[1] = 9;  // the slot holds a later slice already
  ASSERT_TRUE(ring.find(2 * kUnit, &place));
  EXPECT_EQ(place.offset, 2 * kUnit);
}

TEST(StagingRing, NothingIsTakenBeforeCommit) {
  StagingRing ring;
  StagingRing::FreeRange place;
  ring.reset(kUnit);
  EXPECT_TRUE(ring.find(kUnit, &place));
  EXPECT_TRUE(ring.find(kUnit, &place));
  EXPECT_FALSE(ring.find(kUnit + 1, &place)) << "larger than the ring";
  EXPECT_EQ(ring.slices(), 0u);
}

TEST(StagingRing, NumbersAreNotSharedAndEnd) {
  uint64_t words[StagingRing::kMostSlices + 1] = {};
  StagingRing ring;
  StagingRing::FreeRange place;
  ring.reset(1000 * kUnit);
  std::vector<bool> used(StagingRing::kMostSlices);
  for (uint32_t n = 0; n < StagingRing::kMostSlices; ++n) {
    ASSERT_TRUE(ring.find(kUnit, &place));
    ASSERT_FALSE(used[place.number]);
    used[place.number] = true;
    ring.commit(&words[n], 1);
  }
  EXPECT_FALSE(ring.find(kUnit, &place));
  words[0] = 1;
  ASSERT_TRUE(ring.find(kUnit, &place));
  EXPECT_EQ(place.number, 0u) << "of the one that has left";
}

// Against a list of intervals that knows nothing of order.
TEST(StagingRing, NoTwoSlicesOverlap) {
  constexpr uint64_t kBytes = 64 * kUnit;
  struct Live {
    uint64_t begin, end;
    uint64_t* word;
  };
  std::deque<uint64_t> words;
  std::deque<Live> live;
  std::mt19937 random(1);
  StagingRing ring;
  ring.reset(kBytes);
  uint64_t taken = 0, refused = 0;
  for (int n = 0; n < 20000; ++n) {
    if (random() % 2 == 0 && !live.empty()) {
      *live.front().word = 2;
      live.pop_front();
      continue;
    }
    StagingRing::FreeRange place;
    const uint64_t bytes = 1 + random() % (kBytes / 3);
    if (!ring.find(bytes, &place)) {
      ++refused;
      continue;
    }
    ASSERT_LE(place.offset + bytes, kBytes);
    for (const Live& other : live)
      ASSERT_TRUE(place.offset + bytes <= other.begin || other.end <= place.offset);
    words.push_back(1);
    ring.commit(&words.back(), 2);
    live.push_back({place.offset, place.offset + bytes, &words.back()});
    ++taken;
  }
  EXPECT_GT(taken, 5000u);
  EXPECT_GT(refused, 100u);
}

}  // namespace
}  // namespace foreshock
