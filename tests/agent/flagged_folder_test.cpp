#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "agent/flagged.h"
#include "tests/support/temporary_directory.h"

namespace foreshock {
namespace {

namespace fs = std::filesystem;
using Outcome = FlaggedFolder::Outcome;

constexpr char kEnd[] = ".slice.safetensors";

class FlaggedFolderTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return base_.path() + "/slices/" + name; }
  mode_t mode(const std::string& name) const {
    struct stat status = {};
    EXPECT_EQ(stat(path(name).c_str(), &status), 0) << name;
    return status.st_mode & 0777;
  }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path("")), fs::directory_iterator()));
  }
  Outcome write(const FlaggedFolder& folder, const std::string& name, size_t bytes) {
    error_.clear();
    return folder.write(name + kEnd, std::string(bytes, 'x'), &error_);
  }

  TemporaryDirectory base_;
  FlaggedFolder folder_{base_.path() + "/slices", 1000};
  std::string error_;
};

TEST_F(FlaggedFolderTest, IsMadeForItsOwnerAlone) {
  const mode_t before = umask(0);
  EXPECT_EQ(write(folder_, "a", 10), Outcome::kWritten);
  umask(before);
  EXPECT_EQ(mode(""), 0700u);
  EXPECT_EQ(mode("a" + std::string(kEnd)), 0600u);
  EXPECT_EQ(fs::file_size(path("a" + std::string(kEnd))), 10u);
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FlaggedFolderTest, AParentThatIsGoneIsNotMade) {
  const FlaggedFolder folder{base_.path() + "/gone/parent/slices", 1000};
  EXPECT_EQ(write(folder, "a", 10), Outcome::kFailed);
  EXPECT_NE(error_.find("slices: No such file or directory"), std::string::npos) << error_;
  EXPECT_FALSE(fs::exists(base_.path() + "/gone"));
}

TEST_F(FlaggedFolderTest, NeverHoldsMoreBytesThanItsQuota) {
  EXPECT_EQ(write(folder_, "a", 600), Outcome::kWritten);
  EXPECT_EQ(write(folder_, "b", 401), Outcome::kFull);
  EXPECT_NE(error_.find("holds 1 slices of 600 bytes"), std::string::npos) << error_;
  EXPECT_EQ(write(folder_, "c", 400), Outcome::kWritten);
  EXPECT_EQ(write(folder_, "d", 1), Outcome::kFull);
  EXPECT_EQ(entries(), 2u);  // the first ones stay
  EXPECT_TRUE(fs::exists(path("a" + std::string(kEnd))));
}

TEST_F(FlaggedFolderTest, NeverHoldsMoreFilesThanItsQuota) {
  fs::create_directory(path(""));
  for (uint64_t n = 1; n < FlaggedFolder::kMostFiles; ++n) std::ofstream(path(std::to_string(n) + kEnd));
  EXPECT_EQ(write(folder_, "last", 1), Outcome::kWritten);
  EXPECT_EQ(write(folder_, "more", 1), Outcome::kFull);
}

TEST_F(FlaggedFolderTest, WhatIsNoSliceIsNotCountedAndNotTouched) {
  fs::create_directory(path(""));
  std::ofstream(path("checkpoint.safetensors")) << std::string(2000, 'x');
  EXPECT_EQ(write(folder_, "a", 1000), Outcome::kWritten);
  EXPECT_EQ(fs::file_size(path("checkpoint.safetensors")), 2000u);
}

TEST_F(FlaggedFolderTest, HalfWrittenFilesCountAndGoWhenTheyAreAbandoned) {
  fs::create_directory(path(""));
  const std::string part = path("dead" + std::string(kEnd) + ".new");
  std::ofstream(part) << std::string(900, 'x');
  EXPECT_EQ(write(folder_, "a", 101), Outcome::kFull);
  EXPECT_TRUE(fs::exists(part));
  const timespec old[2] = {{1000000000, 0}, {1000000000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, part.c_str(), old, 0), 0);
  EXPECT_EQ(write(folder_, "a", 101), Outcome::kWritten);
  EXPECT_FALSE(fs::exists(part));
}

TEST_F(FlaggedFolderTest, WhereThereIsNoDirectoryItSaysWhy) {
  const FlaggedFolder nowhere(base_.path() + "/missing/slices", 1000);
  EXPECT_EQ(write(nowhere, "a", 1), Outcome::kFailed);
  EXPECT_NE(error_.find("/missing/slices: No such file or directory"), std::string::npos) << error_;
  std::ofstream(base_.path() + "/file");
  EXPECT_EQ(write(FlaggedFolder(base_.path() + "/file", 1000), "a", 1), Outcome::kFailed);
  EXPECT_NE(error_.find("Not a directory"), std::string::npos) << error_;
}

// A limit on file sizes fails in the middle of a write, as a full disk does.
TEST_F(FlaggedFolderTest, OfAFileThatDoesNotFitNothingStays) {
  const FlaggedFolder folder(base_.path() + "/slices", 1 << 20);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small = {4096, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Outcome large = write(folder, "large", 10000);
  const std::string why = error_;
  const Outcome fitting = write(folder, "fitting", 4096);
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(large, Outcome::kFailed);
  EXPECT_NE(why.find("File too large"), std::string::npos) << why;
  EXPECT_EQ(fitting, Outcome::kWritten);
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FlaggedFolderTest, ALinkOfAnotherUserToAFolderIsNotFollowed) {
  fs::create_directory(base_.path() + "/all");
  fs::create_directory(base_.path() + "/target");
  fs::create_symlink("../target", base_.path() + "/all/link");
  const FlaggedFolder folder(base_.path() + "/all/link", 1 << 20);
  EXPECT_EQ(write(folder, "a", 10), Outcome::kWritten) << "a link of this user";
  if (lchown((base_.path() + "/all/link").c_str(), 12345, 12345) != 0) GTEST_SKIP() << "needs root";
  ASSERT_EQ(chmod((base_.path() + "/all").c_str(), 01777), 0);
  EXPECT_EQ(write(folder, "b", 10), Outcome::kFailed);
  EXPECT_NE(error_.find("link is a link of another user"), std::string::npos) << error_;
  EXPECT_EQ(std::distance(fs::directory_iterator(base_.path() + "/target"), {}), 1);
}

TEST_F(FlaggedFolderTest, NoLinkIsFollowed) {
  fs::create_directory(path(""));
  std::ofstream(base_.path() + "/victim") << "mine";
  fs::create_symlink(base_.path() + "/victim", path("a" + std::string(kEnd) + ".new"));
  EXPECT_EQ(write(folder_, "a", 10), Outcome::kWritten);
  EXPECT_EQ(fs::file_size(base_.path() + "/victim"), 4u);
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path("a" + std::string(kEnd)))));
}

}  // namespace
}  // namespace foreshock
