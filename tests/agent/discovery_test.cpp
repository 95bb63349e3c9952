#include "agent/discovery.h"

#include <gtest/gtest.h>

#include "tests/agent/segment_of_a_trainer.h"
#include "tests/support/few_descriptors.h"

namespace foreshock {
namespace {

// No fixture: of a class with virtual functions UBSan asks whether its memory can be read, by way of a pipe,
// and here there may be no descriptor for one.
struct Looking {
  size_t look() {
    refused.clear();
    for (auto& segment : discovery.find_new(100, &refused)) found.push_back(std::move(segment));
    return found.size();
  }

  SegmentOfATrainer trainer;
  std::string why;
  const std::unique_ptr<Directory> directory = Directory::open(trainer.directory, &why);
  Discovery discovery{*directory};
  std::vector<std::unique_ptr<segment::SegmentReader>> found;
  std::vector<Discovery::Refusal> refused;
};

TEST(Discovery, AShortageOfDescriptorsPasses) {
  Looking at;
  {
    // Enough to read the directory and to open one of the two files.
    const FewDescriptors few(1);
    EXPECT_EQ(at.look(), 0u);
    ASSERT_EQ(at.refused.size(), 1u);
    EXPECT_TRUE(at.refused[0].is_waiting);
    EXPECT_EQ(at.look(), 0u);
    EXPECT_EQ(at.refused.size(), 0u) << "told once";
    EXPECT_EQ(at.discovery.waiting(), 1u);
  }
  EXPECT_EQ(at.look(), 1u);
  EXPECT_EQ(at.discovery.waiting(), 0u);
  EXPECT_EQ(at.look(), 1u);
}

TEST(Discovery, WhatIsFollowedIsNotFoundAgainAfterAShortage) {
  Looking at;
  EXPECT_EQ(at.look(), 1u);
  {
    const FewDescriptors none(0);
    EXPECT_EQ(at.look(), 1u);
  }
  EXPECT_EQ(at.look(), 1u) << "two readers of one segment would count all of it twice";
}

TEST(Discovery, SegmentsLeaveDescriptorsForTheAgentsOwnWork) {
  Looking at;
  std::vector<std::unique_ptr<SegmentOfATrainer>> others;
  for (int rank = 1; rank < 48; ++rank)
    others.push_back(std::make_unique<SegmentOfATrainer>(at.trainer.directory, rank));
  // More than the 64 at most that the agent reserves. Writers keep two each for as long as the process lives,
  // so the limit, of which the agent reserves a quarter, depends on the tests that ran before.
  const FewDescriptors few(80);
  const size_t found = at.look();
  EXPECT_GT(found, 0u);
  EXPECT_EQ(found + at.discovery.waiting(), 48u);
  EXPECT_GT(at.discovery.waiting(), 0u);
  EXPECT_GE(FewDescriptors::left(), 8);
  const std::string waits = at.refused.at(0).name;
  others.clear();  // the files stay
  std::filesystem::remove(at.trainer.directory + "/" + waits + ".seg");
  at.look();
  EXPECT_EQ(found + at.discovery.waiting(), 47u) << "what is gone waits no longer";
}

TEST(Discovery, WhatCannotBeFollowedIsRefusedOnce) {
  Looking at;
  std::filesystem::resize_file(at.trainer.directory + "/0-0000000000000010.ctl", 10);
  EXPECT_EQ(at.look(), 0u);
  ASSERT_EQ(at.refused.size(), 1u);
  EXPECT_FALSE(at.refused[0].is_waiting);
  EXPECT_EQ(at.look(), 0u);
  EXPECT_EQ(at.refused.size(), 0u);
}

}  // namespace
}  // namespace foreshock
