#include "agent/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.h"

namespace foreshock {
namespace {

namespace fs = std::filesystem;

class DirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(path_);
    std::ofstream(outside_ / "secret") << "secret";
    std::string why;
    directory_ = Directory::open(path_, &why);
    ASSERT_NE(directory_, nullptr) << why;
  }
  std::string secret() const {
    std::ifstream file(outside_ / "secret");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TemporaryDirectory temporary_;
  const fs::path outside_ = temporary_.path(), path_ = outside_ / "inside";
  std::unique_ptr<Directory> directory_;
};

TEST_F(DirectoryTest, FilesAreReadAndReplacedWhole) {
  EXPECT_EQ(directory_->read("a.json", 100), std::nullopt);
  EXPECT_TRUE(directory_->write("a.json", "one"));
  EXPECT_EQ(directory_->read("a.json", 100), "one");
  EXPECT_TRUE(directory_->write("a.json", "two"));
  EXPECT_EQ(directory_->read("a.json", 3), "two");
  EXPECT_EQ(directory_->read("a.json", 2), std::nullopt) << "larger than asked for";
  EXPECT_EQ(directory_->names("", ".json"), std::vector<std::string>{"a.json"});
  EXPECT_EQ(fs::status(path_ / "a.json").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  directory_->remove("a.json");
  EXPECT_FALSE(directory_->has("a.json"));
}

TEST_F(DirectoryTest, AFileThatCannotBeReadIsNotAnEmptyOne) {
  std::string why;
  // The file `mem` of a process opens, but cannot be read at the address 0.
  const auto own = Directory::open("/proc/" + std::to_string(getpid()), &why);
  ASSERT_NE(own, nullptr) << why;
  EXPECT_EQ(own->read("mem", 100), std::nullopt);
  EXPECT_EQ(errno, EIO);
}

TEST_F(DirectoryTest, NoLinkIsFollowed) {
  for (const char* name : {"link", "a.json.new", "agent.lock"})
    fs::create_symlink(outside_ / "secret", path_ / name);
  EXPECT_EQ(directory_->read("link", 100), std::nullopt);
  EXPECT_EQ(directory_->open_file("link", O_RDWR), -1);
  EXPECT_EQ(directory_->lock("agent.lock", LOCK_EX), -1);
  EXPECT_FALSE(directory_->is_locked("agent.lock"));
  EXPECT_TRUE(directory_->write("a.json", "text")) << "the link in the way is taken away";
  EXPECT_TRUE(directory_->write("link", "text")) << "the link itself is replaced";
  EXPECT_EQ(secret(), "secret");
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path_ / "link")));
}

TEST_F(DirectoryTest, OnlyPlainNamesOfRegularFiles) {
  for (const char* name : {"../secret", "..", ".", "", "/etc/passwd"}) {
    EXPECT_EQ(directory_->open_file(name, O_RDONLY), -1) << name;
    EXPECT_FALSE(directory_->write(name, "text")) << name;
    EXPECT_FALSE(directory_->has(name)) << name;
  }
  ASSERT_EQ(mkfifo((path_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(directory_->read("pipe", 100), std::nullopt) << "and it does not wait for the other end";
  fs::create_directory(path_ / "folder");
  EXPECT_EQ(directory_->open_file("folder", O_RDONLY), -1);
  EXPECT_FALSE(directory_->write("folder", "text"));
  fs::create_hard_link(outside_ / "secret", path_ / "hard");
  EXPECT_EQ(directory_->open_file("hard", O_RDWR), -1) << "another name of a file that may lie elsewhere";
  EXPECT_EQ(secret(), "secret");
}

TEST_F(DirectoryTest, ALinkIsNoDirectory) {
  std::string why;
  fs::create_directory_symlink(outside_, path_ / "up");
  EXPECT_EQ(directory_->open_inside("up", &why), nullptr);
  EXPECT_EQ(Directory::open(path_ / "up", &why), nullptr);
  EXPECT_FALSE(why.empty());
  EXPECT_EQ(directory_->open_inside("..", &why), nullptr);
  fs::create_directory(path_ / "run");
  EXPECT_NE(directory_->open_inside("run", &why), nullptr);
  EXPECT_EQ(directory_->directories(), std::vector<std::string>{"run"});
}

// What stands under the old name afterwards is not what is used.
TEST_F(DirectoryTest, ADirectoryThatIsExchangedIsTheOldOne) {
  fs::rename(path_, outside_ / "away");
  fs::create_directory_symlink("/", path_);
  EXPECT_TRUE(directory_->write("a", "text"));
  EXPECT_TRUE(fs::exists(outside_ / "away" / "a"));
  EXPECT_FALSE(fs::exists("/a"));
}

TEST_F(DirectoryTest, ALockIsHeldByOne) {
  const int first = directory_->lock("agent.lock", LOCK_EX);
  ASSERT_GE(first, 0);
  EXPECT_TRUE(directory_->is_locked("agent.lock"));
  EXPECT_EQ(directory_->lock("agent.lock", LOCK_EX), -1);
  EXPECT_EQ(errno, EWOULDBLOCK);
  close(first);
  EXPECT_FALSE(directory_->is_locked("agent.lock"));
}

// As a service that serves others.
TEST_F(DirectoryTest, WhatRootWritesBelongsToTheOwner) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr uid_t kUser = 4321;
  ASSERT_EQ(chown(path_.c_str(), kUser, kUser), 0);
  std::string why;
  const auto directory = Directory::open(path_, &why);
  EXPECT_EQ(directory->owner(), kUser);
  EXPECT_TRUE(directory->write("summary", "text"));
  struct stat status = {};
  ASSERT_EQ(stat((path_ / "summary").c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, kUser);
  std::ofstream(path_ / "theirs") << "text";
  ASSERT_EQ(chown((path_ / "theirs").c_str(), kUser + 1, kUser), 0);
  EXPECT_EQ(directory->open_file("theirs", O_RDONLY), -1) << "neither the owner's nor ours";
  close(directory->lock("agent.lock", LOCK_EX));
  ASSERT_EQ(stat((path_ / "agent.lock").c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, kUser);
}

TEST_F(DirectoryTest, OfThousandsOfFilesSomeAreRead) {
  for (size_t n = 0; n < Directory::kMostEntries + 100; ++n)
    close(open((path_ / std::to_string(n)).c_str(), O_CREAT | O_WRONLY, 0600));
  const size_t found = directory_->names("", "").size();
  EXPECT_LE(found, Directory::kMostEntries);
  EXPECT_GT(found, Directory::kMostEntries / 2);
}

}  // namespace
}  // namespace foreshock
