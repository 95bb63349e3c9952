#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "exporters/record.h"
#include "tests/support/temporary_directory.h"

namespace foreshock {
namespace {

class Spool : public testing::Test {
 protected:
  // As each agent does it.
  RecordSpool open() const { return RecordSpool(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND, 0600)); }

  const TemporaryDirectory temporary_;
  const std::string path_ = std::string(temporary_.path()) + "/record.spool";
};

TEST_F(Spool, GivesTheNextAgentTheMissingLines) {
  {
    RecordSpool spool = open();
    EXPECT_TRUE(spool.add("one\ntwo\n", {7, 100}));
    EXPECT_TRUE(spool.add("three\n", {7, 108}));
  }
  EXPECT_EQ(open().missing({7, 100}), "one\ntwo\nthree\n");
  EXPECT_EQ(open().missing({7, 104}), "two\nthree\n");
  EXPECT_EQ(open().missing({7, 114}), "");
}

TEST_F(Spool, AllLinesAreMissingFromAnotherOrShorterRecord) {
  EXPECT_TRUE(open().add("one\ntwo\n", {7, 100}));
  EXPECT_EQ(open().missing({8, 104}), "one\ntwo\n");
  EXPECT_EQ(open().missing({7, 99}), "one\ntwo\n");
}

TEST_F(Spool, NothingIsMissingFromALongerRecord) {
  EXPECT_TRUE(open().add("one\ntwo\n", {7, 100}));
  EXPECT_EQ(open().missing({7, 109}), "");
  EXPECT_EQ(open().missing({7, UINT64_MAX}), "");
}

TEST_F(Spool, IgnoresATornLine) {
  EXPECT_TRUE(open().add("one\ntwo\n", {7, 100}));
  std::ofstream(path_, std::ios::app) << "thr";
  EXPECT_EQ(open().missing({7, 104}), "two\n");
}

TEST_F(Spool, AnUnreadableSpoolIsEmpty) {
  for (const char* bytes : {"", "\n", "hello\nworld\n", "foreshock spool 1 2\none\n", "foreshock spool "}) {
    std::ofstream(path_, std::ios::trunc) << bytes;
    EXPECT_EQ(open().missing({7, 0}), "") << bytes;
  }
}

TEST_F(Spool, StartsAtTheGivenPlaceAfterClearing) {
  {
    RecordSpool spool = open();
    EXPECT_TRUE(spool.add("one\n", {7, 100}));
    spool.clear();
    EXPECT_TRUE(spool.add("two\n", {7, 104}));
  }
  EXPECT_EQ(open().missing({7, 104}), "two\n");
  open().clear();
  EXPECT_EQ(std::filesystem::file_size(path_), 0u);
}

TEST_F(Spool, RefusesALineThatDoesNotFitAndAllLaterOnes) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  RecordSpool spool = open();
  EXPECT_TRUE(spool.add("one\n", {7, 100}));
  rlimit tight = before;
  tight.rlim_cur = std::filesystem::file_size(path_) + 2;
  setrlimit(RLIMIT_FSIZE, &tight);
  EXPECT_FALSE(spool.add("two\n", {7, 104}));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(spool.is_whole());
  EXPECT_FALSE(spool.add("three\n", {7, 108}));
  EXPECT_EQ(open().missing({7, 100}), "one\n");
  spool.clear();
  EXPECT_TRUE(spool.add("four\n", {7, 114}));
  EXPECT_EQ(open().missing({7, 114}), "four\n");
}

TEST_F(Spool, HasALimit) {
  RecordSpool spool = open();
  const std::string line = std::string((size_t{1} << 20) - 1, 'x') + "\n";
  uint64_t added = 0;
  while (added <= RecordSpool::kMostBytes && spool.add(line, {7, added})) added += line.size();
  EXPECT_EQ(added, RecordSpool::kMostBytes - line.size()) << "its first line takes of the last part";
  EXPECT_EQ(open().missing({7, 0}).size(), added);
}

TEST_F(Spool, AddsNothingWithoutAFile) {
  RecordSpool spool(-1);
  EXPECT_FALSE(spool.add("one\n", {7, 100}));
  EXPECT_FALSE(spool.is_whole());
  spool.clear();
  EXPECT_FALSE(spool.is_whole());
  EXPECT_EQ(spool.missing({7, 100}), "");
}

}  // namespace
}  // namespace foreshock
