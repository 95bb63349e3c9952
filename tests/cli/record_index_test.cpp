#include "cli/record_index.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_directory.h"

namespace foreshock::cli {
namespace {

std::string step(int rank, int number) {
  StepLine line;
  line.run = "r";
  line.rank = rank;
  line.step = number;
  return to_json_line(line) + "\n";
}

std::string state(int rank, const char* what) {
  RunLine line;
  line.run = "r";
  line.rank = rank;
  line.state = what;
  line.world_size = 4;
  return to_json_line(line) + "\n";
}

std::string tensor(int number, const char* scope = "node") {
  TensorLine line;
  line.run = "r";
  line.scope = scope;
  line.step = number;
  line.tensor = "w";
  return to_json_line(line) + "\n";
}

class Index : public testing::Test {
 protected:
  std::string add(const std::string& name, const std::string& content) {
    const std::string path = directory_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return index_.add(path, [this](const RecordLine&, const IndexedLine&) { ++visited_; });
  }
  std::vector<std::string> sorted() { return sorted(&index_); }
  static std::vector<std::string> sorted(RecordIndex* index) {
    EXPECT_EQ(index->sort(), "");
    std::vector<std::string> texts;
    for (IndexedLine line; index->next(&line);) texts.push_back(index->text(line) + "\n");
    return texts;
  }

  TemporaryDirectory directory_;
  RecordIndex index_;
  int visited_ = 0;
};

TEST_F(Index, LinesComeInTheOrderOfSteps) {
  ASSERT_EQ(add("a", state(0, "started") + step(0, 1) + tensor(1) + step(0, 2) + state(0, "ended")), "");
  ASSERT_EQ(add("b", step(1, 1) + step(1, 2) + state(1, "started") + tensor(1)), "");
  const std::vector<std::string> expected = {state(0, "started"), state(1, "started"), step(0, 1),
                                             step(1, 1),          tensor(1),           tensor(1),
                                             step(0, 2),          step(1, 2),          state(0, "ended")};
  EXPECT_EQ(sorted(), expected);
  EXPECT_EQ(visited_, 9);
  EXPECT_EQ(index_.ranks(), 2u);
  EXPECT_EQ(index_.world_size(), 4);
}

TEST_F(Index, WhatIsKnownLaterThanItHappenedStaysWhereItWasTold) {
  EventLine spike;
  spike.run = "r";
  spike.rank = 0;
  spike.step = 1;  // its onset
  spike.event = "loss_spike";
  const std::string event = to_json_line(spike) + "\n";
  const std::string again = state(0, "ended") + state(0, "started");
  ASSERT_EQ(add("a", state(0, "started") + step(0, 1) + step(0, 2) + event + again + step(0, 3)), "");
  ASSERT_EQ(add("b", state(1, "started") + step(1, 1) + step(1, 2) + step(1, 3)), "");
  const std::vector<std::string> expected = {
      state(0, "started"), state(1, "started"), step(0, 1), step(1, 1), step(0, 2), step(1, 2), event,
      state(0, "ended"),   state(0, "started"), step(0, 3), step(1, 3)};
  EXPECT_EQ(sorted(), expected);
}

TEST_F(Index, ARestartThatRepeatsStepsComesAfterWhatWasBefore) {
  ASSERT_EQ(add("a", step(0, 1) + step(0, 2) + step(0, 3) + step(0, 2) + tensor(2) + step(0, 3)), "");
  ASSERT_EQ(add("b", step(1, 1) + step(1, 2) + step(1, 2) + tensor(2)), "");
  const std::vector<std::string> expected = {step(0, 1), step(1, 1), step(0, 2), step(1, 2), step(0, 3),
                                             step(0, 2), step(1, 2), tensor(2),  tensor(2),  step(0, 3)};
  EXPECT_EQ(sorted(), expected);
}

TEST_F(Index, BadLinesAreCountedAndALineCutOffIsNone) {
  ASSERT_EQ(add("a", step(0, 1) + "something\n" + step(0, 2) + step(0, 3).substr(0, 20)), "");
  EXPECT_EQ(index_.count(), 2u);
  EXPECT_EQ(index_.bad_lines(), 1u);
  EXPECT_NE(index_.first_problem().find("line 2"), std::string::npos);
}

TEST_F(Index, WhatDoesNotBelongTogetherIsNamed) {
  EXPECT_NE(add("empty", "").find("no line of it is a record's"), std::string::npos);
  EXPECT_NE(add("job", tensor(1, "job")).find("is merged already"), std::string::npos);
  EXPECT_EQ(add("a", step(0, 1)), "");
  EXPECT_NE(add("b", step(0, 1)).find("rank 0 is in both"), std::string::npos);
}

// As of a record of 10^8 lines, with room for a hundred.
TEST_F(Index, WhatDoesNotFitIntoMemoryIsSortedInPieces) {
  std::string texts[2];
  for (int n = 1; n <= 3000; ++n)
    for (int rank = 0; rank < 2; ++rank) texts[rank] += step(rank, n);
  RecordIndex small(100);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(add(rank == 0 ? "a" : "b", texts[rank]), "");
    const auto ignore = [](const RecordLine&, const IndexedLine&) {};
    ASSERT_EQ(small.add(directory_.path() + (rank == 0 ? "/a" : "/b"), ignore), "");
  }
  const std::vector<std::string> found = sorted(&small);
  EXPECT_EQ(found.size(), 6000u);
  EXPECT_EQ(found, sorted());
  EXPECT_EQ(small.pieces(), 60u + 1u);
}

TEST_F(Index, ARecordInTwoPartsIsOne) {
  std::ofstream(directory_.path() + "/a.1", std::ios::binary) << step(0, 1) << step(0, 2);
  ASSERT_EQ(add("a", step(0, 3)), "");
  ASSERT_EQ(add("b", step(1, 1) + step(1, 2) + step(1, 3)), "");
  const std::vector<std::string> expected = {step(0, 1), step(1, 1), step(0, 2),
                                             step(1, 2), step(0, 3), step(1, 3)};
  EXPECT_EQ(sorted(), expected);
}

}  // namespace
}  // namespace foreshock::cli
