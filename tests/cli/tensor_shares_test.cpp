#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "cli/merge.h"

namespace foreshock::cli {
namespace {

// Rows [first, first + rows) of 8, in 4 columns.
TensorLine share(int64_t first, int64_t rows, const char* histogram = "AA==") {
  TensorLine line;
  line.tensor = "w";
  line.step = 1;
  line.elements = static_cast<uint64_t>(4 * rows);
  line.whole_elements = 32;
  if (rows < 8) {
    line.part_offsets = {first, 0, 0, 0};
    line.part_shapes = {rows, 4, 1, 1};
  }
  line.histogram = histogram;
  return line;
}

IndexedLine of_record(uint32_t record, uint32_t generation = 0) {
  IndexedLine at;
  at.record = record;
  at.generation = generation;
  return at;
}

class Shares : public testing::Test {
 protected:
  Shares() {
    for (int rank = 0; rank < 3; ++rank) {
      const std::string path = testing::TempDir() + "shares-" + "abc"[rank] + ".jsonl";
      std::ofstream(path) << R"({"schema":1,"type":"run","run":"r","state":"started","rank":)" << rank
                          << "}\n";
      EXPECT_EQ(index_.add(path, [](const auto&...) {}), "");
    }
  }
  TensorShares shares_;
  RecordIndex index_;
};

TEST_F(Shares, PartsThatMakeAWhole) {
  shares_.add(share(0, 3), of_record(0));
  shares_.add(share(3, 5), of_record(1));
  shares_.add(share(0, 3), of_record(2));  // a replica
  EXPECT_EQ(shares_.check(index_), "");
  EXPECT_TRUE(shares_.is_complete(0, 0));
  EXPECT_TRUE(shares_.has_checked_parts(share(0, 3), of_record(2)));
  EXPECT_FALSE(shares_.has_checked_parts(share(1, 3), of_record(2)));
  EXPECT_FALSE(shares_.is_complete(1, 0));
}

TEST_F(Shares, AWholeNeedsNoHistogram) {
  shares_.add(share(0, 8, ""), of_record(0));
  shares_.add(share(0, 8, ""), of_record(1));
  EXPECT_EQ(shares_.check(index_), "");
}

TEST_F(Shares, AMissingPart) {
  shares_.add(share(0, 3), of_record(0));
  shares_.add(share(4, 4), of_record(1));
  EXPECT_EQ(shares_.check(index_),
            "w: 28 of its 32 values are in these records; name the record of every node");
}

TEST_F(Shares, OverlappingParts) {
  shares_.add(share(0, 4), of_record(0));
  shares_.add(share(3, 4), of_record(1));
  EXPECT_NE(shares_.check(index_).find("-a.jsonl and " + testing::TempDir() + "shares-b.jsonl overlap"),
            std::string::npos);
}

TEST_F(Shares, NoHistograms) {
  shares_.add(share(0, 4, ""), of_record(0));
  shares_.add(share(4, 4, ""), of_record(1));
  EXPECT_NE(shares_.check(index_).find("--record-histograms"), std::string::npos);
}

TEST_F(Shares, NumbersThatAreNoParts) {
  TensorLine odd = share(0, 4);
  odd.part_shapes.pop_back();
  shares_.add(odd, of_record(0));
  EXPECT_NE(shares_.check(index_).find("cannot be read"), std::string::npos);
  odd = share(0, 4);
  odd.part_offsets[0] = INT64_MAX;
  shares_.add(odd, of_record(0));
  EXPECT_NE(shares_.check(index_).find("cannot be read"), std::string::npos);
}

TEST_F(Shares, OneGenerationThatIsWholeIsEnough) {
  shares_.add(share(0, 4), of_record(0));
  shares_.add(share(0, 4), of_record(0, 1));
  shares_.add(share(4, 4), of_record(1, 1));
  EXPECT_EQ(shares_.check(index_), "");
  EXPECT_FALSE(shares_.is_complete(0, 0));
  EXPECT_TRUE(shares_.is_complete(1, 0));
}

}  // namespace
}  // namespace foreshock::cli
