#include <gtest/gtest.h>

#include <string>

#include "foreshock/hook.h"
#include "libmonitor/coverage.h"

namespace foreshock {
namespace {

using Records = segment::UnseenName[segment::kMaxUnseen];

TEST(UnhookedAttention, WhatWasNotedBeforeTheSegmentIsInIt) {
  UnhookedAttention unseen;
  unseen.note("flex_attention", FORESHOCK_UNSEEN_USED, false);
  Records records = {};
  unseen.attach(records);
  unseen.note("stranger::attend", FORESHOCK_UNSEEN_IMPORTED, true);
  EXPECT_STREQ(records[0].name, "flex_attention");
  EXPECT_STREQ(records[1].name, "stranger::attend");
  EXPECT_EQ(records[0].ready + records[1].ready, 2u);
  EXPECT_EQ(records[1].evidence, uint32_t{FORESHOCK_UNSEEN_IMPORTED});
  EXPECT_EQ(records[2].ready, 0u);
}

TEST(UnhookedAttention, EachNameOnceWithItsBestEvidence) {
  UnhookedAttention unseen;
  Records records = {};
  unseen.attach(records);
  for (uint32_t evidence : {FORESHOCK_UNSEEN_IMPORTED, FORESHOCK_UNSEEN_USED, FORESHOCK_UNSEEN_IMPORTED})
    unseen.note("a", evidence, true);
  EXPECT_EQ(records[0].evidence, uint32_t{FORESHOCK_UNSEEN_USED});
  EXPECT_EQ(records[1].ready, 0u);
}

TEST(UnhookedAttention, WhatIsNoNameOrHasNoRoomIsDropped) {
  UnhookedAttention unseen;
  Records records = {};
  unseen.attach(records);
  unseen.note(nullptr, FORESHOCK_UNSEEN_USED, true);
  unseen.note("", FORESHOCK_UNSEEN_USED, true);
  unseen.note("a", 0, true);
  unseen.note("a", 3, true);
  EXPECT_EQ(records[0].ready, 0u);
  for (uint32_t n = 0; n < 2 * segment::kMaxUnseen; ++n)
    unseen.note((std::string(100, 'x').replace(0, 2, std::to_string(10 + n))).c_str(), FORESHOCK_UNSEEN_USED,
                true);
  for (uint32_t n = 0; n < segment::kMaxUnseen; ++n) {
    EXPECT_EQ(records[n].ready, 1u);
    EXPECT_EQ(std::string(records[n].name).size(), sizeof records[n].name - 1);
    EXPECT_EQ(std::string(records[n].name).substr(0, 2), std::to_string(10 + n));
  }
}

}  // namespace
}  // namespace foreshock
