#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "agent/discovery.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/temporary_directory.h"

namespace foreshock {
namespace {

namespace fs = std::filesystem;

class TreeTest : public testing::Test {
 protected:
  void SetUp() override { tree_ = std::make_unique<Tree>(Directory::open(root_, &why_)); }
  void make_run(const std::string& label) {
    fs::create_directories(root_ / label);
    std::ofstream(root_ / label / "run.lock") << "";
  }
  std::vector<std::string> look() {
    std::vector<std::string> labels;
    found_ = tree_->find_new();
    for (const FoundRun& run : found_) labels.push_back(run.label);
    return labels;
  }
  using Labels = std::vector<std::string>;

  const TemporaryDirectory temporary_;
  const fs::path root_ = temporary_.path();
  std::unique_ptr<Tree> tree_;
  std::vector<FoundRun> found_;
  std::string why_;
};

TEST_F(TreeTest, FindsRunsOfUsersAndOfTheRootOnce) {
  make_run("ada/one");
  make_run("ada/two");
  make_run("seven");
  fs::create_directories(root_ / "bob" / "empty");
  EXPECT_EQ(look(), (Labels{"ada/one", "ada/two", "seven"}));
  EXPECT_EQ(found_[1].run_id, "two");
  EXPECT_EQ(look(), Labels{});
  std::ofstream(root_ / "bob" / "empty" / "0-1.seg") << "";
  EXPECT_EQ(look(), Labels{"bob/empty"}) << "a trainer without a launcher";
}

TEST_F(TreeTest, WhatWasLeftComesBackWhenSomethingIsMadeInIt) {
  make_run("ada/one");
  EXPECT_EQ(look(), Labels{"ada/one"});
  const auto directory = std::move(found_[0].directory);
  struct timespec past[2] = {{1000, 0}, {1000, 0}};  // so long ago that a change shows
  futimens(directory->descriptor(), past);
  tree_->leave("ada/one", *directory, false);
  EXPECT_EQ(look(), Labels{});
  std::ofstream(root_ / "ada" / "one" / "1-2.seg") << "";
  EXPECT_EQ(look(), Labels{"ada/one"});
  tree_->leave("ada/one", *found_[0].directory, true);
  EXPECT_EQ(look(), Labels{"ada/one"}) << "another agent had it: asked again and again";
}

TEST_F(TreeTest, AShortageOfDescriptorsDoesNotMakeRunsNew) {
  make_run("ada/one");
  make_run("seven");
  EXPECT_EQ(look(), (Labels{"ada/one", "seven"}));
  for (const int some : {0, 1, 2, 3, 0}) {
    {
      const FewDescriptors few(some);
      EXPECT_EQ(look(), Labels{}) << some;
    }
    EXPECT_EQ(look(), Labels{}) << "found again, a run is followed from its beginning";
  }
  fs::remove_all(root_ / "seven");
  EXPECT_EQ(look(), Labels{});
  make_run("seven");
  EXPECT_EQ(look(), Labels{"seven"});
}

TEST_F(TreeTest, ADirectoryThatWasMadeAnewIsAnotherRun) {
  make_run("ada/one");
  EXPECT_EQ(look(), Labels{"ada/one"});
  fs::rename(root_ / "ada" / "one", root_ / "ada" / ".old");  // keeps the inode from being used again
  make_run("ada/one");
  EXPECT_EQ(look(), Labels{"ada/one"});
}

TEST_F(TreeTest, HostileNamesAndLinksAreNotFollowed) {
  make_run("ada/new\nline");
  make_run("ada/<script>");
  make_run("ada/" + std::string(200, 'x'));
  fs::create_directories(root_ / "elsewhere");
  make_run("real/run");
  fs::create_directory_symlink(root_ / "real", root_ / "link");
  fs::create_directory_symlink(root_ / "real" / "run", root_ / "ada" / "link");
  fs::create_directory_symlink("/", root_ / "slash");
  EXPECT_EQ(look(), Labels{"real/run"});
  EXPECT_EQ(tree_->refused(), 3u);
  EXPECT_EQ(look(), Labels{});
  EXPECT_EQ(tree_->refused(), 3u) << "each once";
}

TEST_F(TreeTest, OneUserDoesNotTakeAllPlaces) {
  for (size_t n = 0; n < Tree::kMostRunsOfUser + 10; ++n) make_run("mallory/" + std::to_string(n));
  make_run("zoe/one");
  const Labels found = look();
  EXPECT_EQ(found.size(), Tree::kMostRunsOfUser + 1);
  EXPECT_EQ(found.back(), "zoe/one");
  EXPECT_EQ(look(), Labels{});
  tree_->leave(found[0], *Directory::open(root_ / found[0], &why_), false);
  EXPECT_EQ(look().size(), 1u) << "the next one in its place";
}

}  // namespace
}  // namespace foreshock
