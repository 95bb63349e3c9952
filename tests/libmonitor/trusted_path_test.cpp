// The walk that finds out whether other users could replace a file.
#include "libmonitor/trusted_path.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/support/temporary_directory.h"

namespace foreshock {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kStranger = 12345;

class TrustedPathTest : public testing::Test {
 protected:
  TrustedPathTest() {
    fs::create_directories(at("cache/torch"));
    for (const char* folder : {"cache", "cache/torch"}) chmod(at(folder).c_str(), 0755);
    directory_.write("cache/torch/adapter.so", "code", 0644);
  }

  std::string at(const std::string& name) const { return directory_.path() + "/" + name; }
  void give_away(const std::string& name) const {
    if (lchown(at(name).c_str(), kStranger, kStranger) != 0) GTEST_SKIP() << "chown needs root";
  }
  PathTrust trust(const std::string& name = "cache/torch/adapter.so") const {
    return path_trust(at(name).c_str());
  }
  void expect(Distrust distrust, const std::string& where,
              const std::string& name = "cache/torch/adapter.so") const {
    const PathTrust found = trust(name);
    EXPECT_EQ(found.distrust, distrust);
    EXPECT_EQ(found.where, fs::weakly_canonical(directory_.path()).string() + "/" + where);
  }

  TemporaryDirectory directory_;  // mode 0700, in /tmp, which is sticky
};

TEST_F(TrustedPathTest, WhatIsOurOwnIsTrusted) {
  EXPECT_EQ(trust().distrust, Distrust::kNone);
  EXPECT_TRUE(is_trusted("/"));
  EXPECT_TRUE(is_trusted("/usr/bin/env"));
  EXPECT_EQ(trust("cache/./torch/../torch//adapter.so").distrust, Distrust::kNone);
}

TEST_F(TrustedPathTest, AFileOrFolderThatOthersMayWriteIsNot) {
  for (const char* name : {"cache", "cache/torch", "cache/torch/adapter.so"}) {
    for (const mode_t mode : {mode_t{0757}, mode_t{0777}}) {
      chmod(at(name).c_str(), mode);
      expect(Distrust::kWritable, name);
    }
    chmod(at(name).c_str(), 0755);
  }
}

// Ubuntu's umask makes files writable by their group, and the group of a user has no other member.
TEST_F(TrustedPathTest, WhatAGroupMayWriteIsTrustedIfTheOwnerIsItsOnlyMember) {
  const std::string me = std::to_string(geteuid()), group = std::to_string(getegid());
  const std::string mine = "me:x:" + me + ":" + group + "::/:/bin/sh\n", root = "daemon:x:1:1::/:/bin/sh\n",
                    grid = "me:x:" + group + ":";
  const std::string users = at("users"), groups = at("groups");
  const auto distrust = [&](const std::string& passwd, const std::string& group_file) {
    directory_.write("users", passwd, 0644);
    directory_.write("groups", group_file, 0644);
    return path_trust(at("cache/torch/adapter.so").c_str(), {users.c_str(), groups.c_str()}).distrust;
  };
  for (const char* name : {"cache", "cache/torch", "cache/torch/adapter.so"}) chmod(at(name).c_str(), 0775);
  EXPECT_EQ(distrust(root + mine, "daemon:x:1:\n" + grid + "\n"), Distrust::kNone);
  EXPECT_EQ(distrust(root + mine, "daemon:x:1:\n" + grid + "me\n"), Distrust::kNone);
  EXPECT_EQ(distrust(root + mine, grid + "friend\n"), Distrust::kWritable);
  EXPECT_EQ(distrust(root + mine, grid + "me,friend\n"), Distrust::kWritable);
  EXPECT_EQ(distrust("you:x:1:" + group + "::/:/bin/sh\n" + mine, grid + "\n"), Distrust::kWritable);
  EXPECT_EQ(distrust(mine + "you:x:1:" + group + "::/:/bin/sh\n", grid + "\n"), Distrust::kWritable);
  EXPECT_EQ(distrust(mine + "you:x:1:" + group + "::/:/bin/sh", grid + "\n"), Distrust::kWritable)
      << "a last line without its end counts";
  EXPECT_EQ(distrust(mine, grid), Distrust::kNone);
  EXPECT_EQ(distrust(root, grid + "\n"), Distrust::kWritable) << "the user is not listed";
  EXPECT_EQ(distrust(mine, "daemon:x:1:\n"), Distrust::kWritable) << "the group is not listed";
  EXPECT_EQ(distrust("", ""), Distrust::kWritable);
  EXPECT_EQ(distrust(mine, grid + std::string(5000, 'x') + "\n"), Distrust::kWritable);
  EXPECT_EQ(path_trust(at("cache").c_str(), {"/nowhere", groups.c_str()}).distrust, Distrust::kWritable);
  chmod(at("cache").c_str(), 0777);
  EXPECT_EQ(distrust(mine, grid + "\n"), Distrust::kWritable) << "others may write it";
}

TEST_F(TrustedPathTest, AStickyFolderProtectsOnlyWhatIsOurs) {
  chmod(at("cache").c_str(), 01777);
  EXPECT_EQ(trust().distrust, Distrust::kNone);
  give_away("cache/torch");
  expect(Distrust::kOwner, "cache/torch");
}

TEST_F(TrustedPathTest, WhatBelongsToAnotherUserIsNot) {
  for (const char* name : {"cache/torch/adapter.so", "cache/torch", "cache"}) {
    give_away(name);
    expect(Distrust::kOwner, name);
    EXPECT_EQ(trust().owner, kStranger);
  }
}

TEST_F(TrustedPathTest, LinksAreFollowedAndExamined) {
  fs::create_symlink("cache/torch", at("link"));
  EXPECT_EQ(trust("link/adapter.so").distrust, Distrust::kNone);
  fs::create_symlink(at("link"), at("second"));
  EXPECT_EQ(trust("second/../torch/adapter.so").distrust, Distrust::kNone);
  chmod(at("cache/torch").c_str(), 0777);
  expect(Distrust::kWritable, "cache/torch", "second/adapter.so");
  chmod(at("cache/torch").c_str(), 0755);
  give_away("link");
  expect(Distrust::kOwner, "link", "second/adapter.so");
}

TEST_F(TrustedPathTest, ALinkOfALinkThatOthersMayReplaceIsNotTrusted) {
  fs::create_directory(at("open"));
  fs::create_symlink(at("cache/torch"), at("open/middle"));
  fs::create_symlink(at("open/middle"), at("first"));
  EXPECT_EQ(trust("first/adapter.so").distrust, Distrust::kNone);
  chmod(at("open").c_str(), 0777);
  expect(Distrust::kWritable, "open", "first/adapter.so");
}

TEST_F(TrustedPathTest, EndlessAndOverlongPathsAreRefused) {
  fs::create_symlink("loop", at("loop"));
  EXPECT_EQ(trust("loop").distrust, Distrust::kUnreadable);
  EXPECT_EQ(trust(std::string(5000, 'x')).distrust, Distrust::kUnreadable);
  std::string deep;
  while (deep.size() < 4090) deep += "./";
  EXPECT_EQ(path_trust((at(deep) + "cache").c_str()).distrust, Distrust::kUnreadable);
}

TEST_F(TrustedPathTest, WhatIsMissingIsAsTrustedAsTheFolderAbove) {
  EXPECT_EQ(trust("cache/new/deeper").distrust, Distrust::kNone);
  chmod(at("cache").c_str(), 0777);
  expect(Distrust::kWritable, "cache", "cache/new/deeper");
}

TEST_F(TrustedPathTest, ARelativePathIsExaminedFromTheWorkingDirectory) {
  const fs::path before = fs::current_path();
  fs::current_path(at("cache"));
  EXPECT_TRUE(is_trusted("torch/adapter.so"));
  chmod(at("cache").c_str(), 0777);
  EXPECT_FALSE(is_trusted("torch/adapter.so"));
  fs::current_path(before);
}

}  // namespace
}  // namespace foreshock
