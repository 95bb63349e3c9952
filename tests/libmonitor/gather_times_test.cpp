#include <gtest/gtest.h>

#include "libmonitor/device_sampler.h"

namespace foreshock {
namespace {

struct Slots {
  segment::Slot slot[4] = {};
  segment::Slot* pointer[4] = {&slot[0], &slot[1], &slot[2], &slot[3]};

  void claim(int n, uint64_t ticket) {
    slot[n] = {};
    slot[n].sequence = 2 * ticket - 1;
  }
  void arrive(int n, uint64_t ticket, uint64_t ns) {
    slot[n].device_begin_ns = 1000;
    slot[n].device_end_ns = 1000 + ns;
    slot[n].sequence = 2 * ticket;
  }
};

TEST(CopyTiming, CountWhatHasArrivedOnce) {
  Slots slots;
  CopyTiming times;
  for (int n : {0, 1}) {
    slots.claim(n, 5 + static_cast<uint64_t>(n));
    times.expect(&slots.pointer[n], 5 + static_cast<uint64_t>(n), 1);
  }
  EXPECT_EQ(times.take().slices, 0u) << "both are on their way";
  slots.arrive(1, 6, 40);
  CopyTiming::Spent spent = times.take();
  EXPECT_EQ(spent.slices, 1u);
  EXPECT_EQ(spent.ns, 40u);
  slots.arrive(0, 5, 7);
  spent = times.take();
  EXPECT_EQ(spent.slices, 1u);
  EXPECT_EQ(spent.ns, 7u);
  EXPECT_EQ(times.take().slices, 0u);
  EXPECT_EQ(times.take().ns, 0u);
}

TEST(CopyTiming, ASliceOverSeveralSlotsIsOneOfAllTheirTimes) {
  Slots slots;
  CopyTiming times;
  for (int n : {0, 1, 2}) slots.claim(n, 9 + static_cast<uint64_t>(n));
  times.expect(slots.pointer, 9, 3);
  slots.arrive(2, 11, 100);
  slots.arrive(1, 10, 20);
  EXPECT_EQ(times.take().ns, 0u) << "its first part is not there";
  slots.arrive(0, 9, 3);
  const CopyTiming::Spent spent = times.take();
  EXPECT_EQ(spent.slices, 1u);
  EXPECT_EQ(spent.ns, 123u);
}

// What was missed has cost something all the same.
TEST(CopyTiming, ASlotThatWasTakenAgainCountsAsTheLastOneDid) {
  Slots slots;
  CopyTiming times;
  slots.claim(0, 1);
  times.expect(slots.pointer, 1, 1);
  slots.arrive(0, 1, 50);
  EXPECT_EQ(times.take().ns, 50u);
  for (const bool is_whole : {false, true}) {
    slots.claim(0, 2);
    times.expect(slots.pointer, 2, 1);
    slots.claim(0, 3);
    if (is_whole) slots.arrive(0, 3, 8000);
    const CopyTiming::Spent spent = times.take();
    EXPECT_EQ(spent.slices, 1u);
    EXPECT_EQ(spent.ns, 50u);
  }
}

TEST(CopyTiming, AClockThatRunsBackwardsCountsAsTheLastOneDid) {
  Slots slots;
  CopyTiming times;
  times.expect(slots.pointer, 1, 1);
  slots.arrive(0, 1, 0);
  slots.slot[0].device_end_ns = slots.slot[0].device_begin_ns - 1;
  EXPECT_EQ(times.take().ns, 0u);
}

// A stream that never comes must not fill anything up.
TEST(CopyTiming, MoreThanASegmentHasSlotsAreNotRemembered) {
  Slots slots;
  CopyTiming times;
  slots.claim(0, 1000);
  for (uint32_t n = 0; n < 2 * segment::kMaxSlots; ++n) times.expect(slots.pointer, 1000, 1);
  slots.arrive(0, 1000, 1);
  EXPECT_EQ(times.take().slices, segment::kMaxSlots);
}

}  // namespace
}  // namespace foreshock
