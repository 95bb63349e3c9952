#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "agent/restart_state.h"
#include "tests/support/temporary_directory.h"

namespace foreshock {
namespace {

using nlohmann::json;

RankStatistics guilty_rank() {
  RankStatistics rank;
  LayerStatistics* layer = rank.layer_of("003");
  layer->label = "003";
  layer->pass[1].past[AlarmKind::kLogSumExp] = {40, 55, 7.5};
  statistics_of(2, layer).past[AlarmKind::kFusedRatio] = {41, 56, 20.5};
  rank.unnamed.pass[0].past[AlarmKind::kNonfinite] = {9, 9, std::nullopt};
  rank.pass[0].nonfinite = 2;
  rank.note_event("loss_spike", 60, "", 9.5);
  rank.note_event("nonfinite", 9, "003", NAN);
  rank.note_event("nonfinite", 12, "003", 4);
  return rank;
}

class RankFactsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    directory_ = Directory::open(folder_, &why);
    ASSERT_NE(directory_, nullptr) << why;
  }

  bool is_saved() const { return directory_->has(RankFacts::kFile); }
  // What the next agent makes of a file with this text.
  RankStatistics taken_from(const std::string& text) {
    EXPECT_TRUE(directory_->write(RankFacts::kFile, text));
    return taken_up();
  }
  RankStatistics taken_up(const std::string& segment = "s") {
    RankFacts facts;
    facts.restore(*directory_);
    RankStatistics rank;
    facts.restore_rank(segment, &rank);
    return rank;
  }

  const TemporaryDirectory temporary_;
  const std::string folder_ = temporary_.path();
  std::unique_ptr<Directory> directory_;
};

TEST_F(RankFactsTest, TheNextAgentKnowsWhatTheLastOneKnew) {
  RankFacts facts;
  const RankStatistics before = guilty_rank();
  facts.note("s", before);
  ASSERT_TRUE(facts.save(*directory_));
  const RankStatistics after = taken_up();
  EXPECT_EQ(past_alarms_json(after), past_alarms_json(before));
  EXPECT_EQ(past_alarms_json(after).size(), 3u);
  EXPECT_EQ(events_json(after), events_json(before));
  EXPECT_EQ(events_json(after).size(), 2u);
  EXPECT_EQ(after.pass[0].nonfinite, 2u);
  EXPECT_TRUE(past_alarms_json(taken_up("another")).empty());
}

TEST_F(RankFactsTest, OfAHealthyTrainingNothingIsKept) {
  RankFacts facts;
  facts.note("s", RankStatistics());
  EXPECT_TRUE(facts.save(*directory_));
  EXPECT_FALSE(is_saved());
}

TEST_F(RankFactsTest, WhatIsNotNewIsNotWrittenAgain) {
  RankFacts facts;
  RankStatistics rank = guilty_rank();
  facts.note("s", rank);
  ASSERT_TRUE(facts.save(*directory_));
  directory_->remove(RankFacts::kFile);
  facts.note("s", rank);
  EXPECT_TRUE(facts.save(*directory_));
  EXPECT_FALSE(is_saved());
  rank.note_event("loss_spike", 70, "", 8.0);
  facts.note("s", rank);
  EXPECT_TRUE(facts.save(*directory_));
  EXPECT_TRUE(is_saved());
}

// Those of a process that this agent has not found yet, or that another one follows on.
TEST_F(RankFactsTest, WhatWasKnownOfOthersStays) {
  {
    RankFacts facts;
    facts.note("first", guilty_rank());
    ASSERT_TRUE(facts.save(*directory_));
  }
  RankFacts facts;
  facts.restore(*directory_);
  facts.note("second", guilty_rank());
  ASSERT_TRUE(facts.save(*directory_));
  for (const char* segment : {"first", "second"}) EXPECT_EQ(events_json(taken_up(segment)).size(), 2u);
}

TEST_F(RankFactsTest, WhatIsForgottenIsNotInTheFile) {
  RankFacts facts;
  facts.note("first", guilty_rank());
  facts.note("second", guilty_rank());
  ASSERT_TRUE(facts.save(*directory_));
  facts.forget("first");
  ASSERT_TRUE(facts.save(*directory_));
  EXPECT_TRUE(events_json(taken_up("first")).empty());
  EXPECT_EQ(events_json(taken_up("second")).size(), 2u);
  directory_->remove(RankFacts::kFile);
  facts.forget("of which nothing was known");
  EXPECT_TRUE(facts.save(*directory_));
  EXPECT_FALSE(is_saved());
}

TEST_F(RankFactsTest, WhatIsNotOurFileIsNothing) {
  const std::string alarm = R"({"layer":"003","pass":"forward","of":"bias","first_step":1,"last_step":2})";
  const auto with = [](const std::string& one) { return R"({"s":{"past_alarms":[)" + one + "]}}"; };
  EXPECT_EQ(past_alarms_json(taken_from(with(alarm))).size(), 1u);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = alarm;
    return with(other.replace(other.find(from), from.size(), to));
  };
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("{\"s\":7}"),
        std::string(R"({"s":{"past_alarms":{},"events":"x","nonfinite_slices":[-1,"a"]}})"), with("7"),
        changed("\"003\"", "\"" + std::string(64, 'x') + "\""), changed("\"003\"", "[]"),
        changed("forward", "sideways"), changed("1", "1.5"), changed("\"bias\"", "null"),
        changed("\"bias\"", "\"\"")}) {
    const RankStatistics rank = taken_from(text);
    EXPECT_TRUE(past_alarms_json(rank).empty()) << text;
    EXPECT_TRUE(events_json(rank).empty()) << text;
    EXPECT_EQ(rank.pass[0].nonfinite + rank.pass[1].nonfinite, 0u) << text;
  }
}

TEST_F(RankFactsTest, OfEventsNoMoreAreTakenThanAreKept) {
  json events = json::array();
  for (size_t n = 0; n < 2 * kMostEvents; ++n)
    events.push_back({{"event", std::string("e").append(std::to_string(n))},
                      {"first_step", 1},
                      {"last_step", 2},
                      {"count", 1}});
  EXPECT_EQ(taken_from(json{{"s", {{"events", events}}}}.dump()).events.size(), kMostEvents);
}

TEST_F(RankFactsTest, AFullDirectoryIsTriedAgain) {
  RankFacts facts;
  facts.note("s", guilty_rank());
  std::filesystem::remove_all(folder_);
  EXPECT_FALSE(facts.save(*directory_));
  std::filesystem::create_directory(folder_);
  std::string why;
  directory_ = Directory::open(folder_, &why);
  EXPECT_TRUE(facts.save(*directory_));
  EXPECT_TRUE(is_saved());
}

}  // namespace
}  // namespace foreshock
