#include "agent/discovery.h"

#include <gtest/gtest.h>

#include "tests/agent/segment_of_a_trainer.h"
#include "tests/support/few_descriptors.h"

namespace foreshock {
namespace {

class DiscoveryTest : public testing::Test {
 protected:
  size_t look() {
    refused_.clear();
    for (auto& segment : discovery_.look(100, &refused_)) found_.push_back(std::move(segment));
    return found_.size();
  }

  SegmentOfATrainer trainer_;
  std::string why_;
  const std::unique_ptr<Directory> directory_ = Directory::open(trainer_.directory, &why_);
  Discovery discovery_{*directory_};
  std::vector<std::unique_ptr<segment::SegmentReader>> found_;
  std::vector<Discovery::Refusal> refused_;
};

TEST_F(DiscoveryTest, AShortageOfDescriptorsPasses) {
  {
    // Enough to read the directory and to open one of the two files.
    const FewDescriptors few(1);
    EXPECT_EQ(look(), 0u);
    ASSERT_EQ(refused_.size(), 1u);
    EXPECT_TRUE(refused_[0].is_waiting);
    EXPECT_EQ(look(), 0u);
    EXPECT_EQ(refused_.size(), 0u) << "told once";
    EXPECT_EQ(discovery_.waiting(), 1u);
  }
  EXPECT_EQ(look(), 1u);
  EXPECT_EQ(discovery_.waiting(), 0u);
  EXPECT_EQ(look(), 1u);
}

TEST_F(DiscoveryTest, WhatIsFollowedIsNotFoundAgainAfterAShortage) {
  EXPECT_EQ(look(), 1u);
  {
    const FewDescriptors none(0);
    EXPECT_EQ(look(), 1u);
  }
  EXPECT_EQ(look(), 1u) << "two readers of one segment would count all of it twice";
}

TEST_F(DiscoveryTest, SegmentsLeaveDescriptorsForTheAgentsOwnWork) {
  std::vector<std::unique_ptr<SegmentOfATrainer>> others;
  for (int rank = 1; rank < 24; ++rank)
    others.push_back(std::make_unique<SegmentOfATrainer>(trainer_.directory, rank));
  const FewDescriptors few(32);
  const size_t found = look();
  EXPECT_GT(found, 0u);
  EXPECT_EQ(found + discovery_.waiting(), 24u);
  EXPECT_GT(discovery_.waiting(), 0u);
  EXPECT_GE(FewDescriptors::left(), 8);
  const std::string waits = refused_.at(0).name;
  others.clear();  // the files stay
  std::filesystem::remove(trainer_.directory + "/" + waits + ".seg");
  look();
  EXPECT_EQ(found + discovery_.waiting(), 23u) << "what is gone waits no longer";
}

TEST_F(DiscoveryTest, WhatCannotBeFollowedIsRefusedOnce) {
  std::filesystem::resize_file(trainer_.directory + "/0-0000000000000010.ctl", 10);
  EXPECT_EQ(look(), 0u);
  ASSERT_EQ(refused_.size(), 1u);
  EXPECT_FALSE(refused_[0].is_waiting);
  EXPECT_EQ(look(), 0u);
  EXPECT_EQ(refused_.size(), 0u);
}

}  // namespace
}  // namespace foreshock
