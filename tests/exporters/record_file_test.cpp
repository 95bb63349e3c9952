#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>

#include "exporters/record.h"
#include "tests/support/temporary_directory.h"

namespace foreshock {
namespace {

// A disk that takes so many bytes of each write, and fails when it has taken `room`.
size_t g_at_once, g_room;
int g_error;
ssize_t take_some(int file, const void* bytes, size_t count) {
  if (g_room == 0) {
    errno = g_error;
    return g_error == 0 ? 0 : -1;
  }
  const size_t some = std::min({count, g_at_once, g_room});
  g_room -= some;
  return ::write(file, bytes, some);
}

// The first write is interrupted.
bool g_is_interrupted;
ssize_t interrupted(int file, const void* bytes, size_t count) {
  if (!std::exchange(g_is_interrupted, true)) {
    errno = EINTR;
    return -1;
  }
  return ::write(file, bytes, count);
}

class RecordFileTest : public testing::Test {
 protected:
  std::unique_ptr<RecordFile> open(WriteCall write) const {
    std::string error;
    auto file = RecordFile::open(path_, &error, write);
    EXPECT_NE(file, nullptr) << error;
    return file;
  }
  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TemporaryDirectory temporary_;
  const std::string path_ = temporary_.path() + "/record.jsonl";
  const std::string first_ = "{\"schema\":1,\"step\":1}\n", second_ = "{\"schema\":1,\"step\":2}\n";
};

TEST_F(RecordFileTest, JoinsSmallWritesIntoOneAppend) {
  g_at_once = 5, g_room = SIZE_MAX;
  const auto file = open(take_some);
  const RecordFile::Appended appended = file->append(first_ + second_);
  EXPECT_EQ(appended.error, 0);
  EXPECT_EQ(appended.bytes, bytes().size());
  EXPECT_EQ(bytes(), first_ + second_);
  EXPECT_EQ(file->size(), bytes().size());
}

TEST_F(RecordFileTest, RepeatsAnInterruptedWrite) {
  g_is_interrupted = false;
  const RecordFile::Appended appended = open(interrupted)->append(first_);
  EXPECT_EQ(appended.error, 0);
  EXPECT_EQ(bytes(), first_);
}

TEST_F(RecordFileTest, RemovesATornLine) {
  for (const int error : {ENOSPC, EIO, 0}) {
    std::filesystem::remove(path_);
    g_at_once = SIZE_MAX, g_room = first_.size() + 3, g_error = error;
    const auto file = open(take_some);
    const RecordFile::Appended appended = file->append(first_ + second_);
    EXPECT_EQ(appended.error, error == 0 ? ENOSPC : error);
    EXPECT_EQ(appended.bytes, first_.size());
    EXPECT_EQ(bytes(), first_);
    g_room = SIZE_MAX;
    EXPECT_EQ(file->append(second_).error, 0);
    EXPECT_EQ(bytes(), first_ + second_);
  }
}

TEST_F(RecordFileTest, NoticesThatItsFileWasReplaced) {
  const auto file = open(::write);
  file->append(first_);
  struct stat status;
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(file->inode(), status.st_ino);
  EXPECT_TRUE(file->is_regular());
  std::string error;
  EXPECT_FALSE(RecordFile::open("/dev/null", &error, ::write)->is_regular());
}

TEST_F(RecordFileTest, BecomesTheOlderPartAtHalfItsSize) {
  std::string error;
  const auto file = RecordFile::open(path_, &error, ::write, 4 * first_.size());
  ASSERT_NE(file, nullptr) << error;
  std::string all;
  for (int n = 0; n < 5; ++n) {
    const std::string line = R"({"schema":1,"step":)" + std::to_string(n) + "}\n";
    EXPECT_EQ(file->append(line).error, 0);
    all += line;
  }
  std::ifstream older(older_part(path_), std::ios::binary);
  const std::string before = {std::istreambuf_iterator<char>(older), {}};
  EXPECT_EQ(before + bytes(), all.substr(all.size() - 3 * first_.size())) << "two lines are gone";
  EXPECT_EQ(file->size(), first_.size());
  EXPECT_EQ(RecordFile::open(path_, &error, ::write), nullptr) << "the new part is locked too";
}

TEST_F(RecordFileTest, ANewPartReplacesOnlyTheEmptyFileOfAKilledAgent) {
  std::string error;
  const std::string next = path_ + ".new";
  for (const std::string left : {"", "of the user"}) {
    std::filesystem::remove(path_);
    std::filesystem::remove(older_part(path_));
    std::ofstream(next) << left;
    const auto file = RecordFile::open(path_, &error, ::write, 2 * first_.size());
    ASSERT_NE(file, nullptr) << error;
    EXPECT_EQ(file->append(first_).error, 0);
    EXPECT_EQ(file->append(second_).error, 0);
    EXPECT_EQ(std::filesystem::exists(older_part(path_)), left.empty());
    EXPECT_EQ(bytes(), left.empty() ? second_ : first_ + second_);
    EXPECT_EQ(std::filesystem::exists(next), !left.empty()) << "a file with content is not the agent's";
    std::filesystem::remove(next);
  }
}

}  // namespace
}  // namespace foreshock
