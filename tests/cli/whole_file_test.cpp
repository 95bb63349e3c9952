#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "cli/files.h"
#include "tests/support/temporary_directory.h"

namespace foreshock::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class WholeFileTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path()))
      names.insert(entry.path().lexically_relative(folder_.path()));
    return names;
  }

  TemporaryDirectory folder_;
};

TEST_F(WholeFileTest, TakesThePlaceOfTheOldOneAtTheEnd) {
  const std::string old = folder_.write("out", "old", 0640);
  {
    WholeFile dropped(old);
    dropped.write("half");
  }
  EXPECT_EQ(text_of(old), "old");
  WholeFile file(old);
  file.write("new ");
  file.write("one");
  file.close();
  EXPECT_EQ(text_of(old), "old");
  EXPECT_EQ(file.finish(), "");
  EXPECT_EQ(text_of(old), "new one");
  EXPECT_EQ(names(), (std::set<std::string>{"out"}));
  EXPECT_EQ(fs::status(old).permissions(), fs::perms{0640});
}

TEST_F(WholeFileTest, ANewOneHasTheModeThatIsUsual) {
  const mode_t before = umask(027);
  EXPECT_EQ(write_whole_file(path("out"), "text"), "");
  umask(before);
  EXPECT_EQ(fs::status(path("out")).permissions(), fs::perms{0640});
}

TEST_F(WholeFileTest, ALongNameIsNoTrouble) {
  const std::string name(255, 'x');
  EXPECT_EQ(write_whole_file(path(name), "text"), "");
  EXPECT_EQ(text_of(path(name)), "text");
}

TEST_F(WholeFileTest, LinksStayAndWhatTheyLeadToIsWritten) {
  fs::create_directories(path("far/away"));
  const std::string target = folder_.write("far/away/target", "old", 0600);
  fs::create_symlink("away/target", path("far/second"));  // from where the link is
  fs::create_symlink(path("far/second"), path("first"));
  EXPECT_EQ(why_no_file(path("first")), "");
  EXPECT_EQ(write_whole_file(path("first"), "new"), "");
  EXPECT_EQ(text_of(target), "new");
  EXPECT_TRUE(fs::is_symlink(path("first")));
  EXPECT_TRUE(fs::is_symlink(path("far/second")));
  EXPECT_FALSE(fs::is_symlink(target));
  EXPECT_EQ(names(), (std::set<std::string>{"far", "far/away", "far/away/target", "far/second", "first"}));
}

TEST_F(WholeFileTest, ALinkToWhatIsNotThereYetMakesIt) {
  fs::create_symlink("later", path("link"));
  EXPECT_EQ(why_no_file(path("link")), "");
  EXPECT_EQ(write_whole_file(path("link"), "text"), "");
  EXPECT_EQ(text_of(path("later")), "text");
  EXPECT_TRUE(fs::is_symlink(path("link")));
}

TEST_F(WholeFileTest, LinksThatLeadNowhereAreToldBeforeAndAfter) {
  fs::create_symlink("b", path("a"));
  fs::create_symlink("a", path("b"));
  fs::create_symlink("e", path("e"));
  fs::create_symlink("nowhere/file", path("c"));
  fs::create_directory(path("folder"));
  fs::create_symlink("folder", path("d"));
  for (const char* name : {"a", "c", "d", "e", "folder"}) {
    EXPECT_NE(why_no_file(path(name)), "") << name;
    const std::string problem = write_whole_file(path(name), "text");
    EXPECT_THAT(problem, HasSubstr(path(name))) << name;
    EXPECT_EQ(problem.find('\n'), std::string::npos);
  }
  for (const char* name : {"a", "e"})
    EXPECT_THAT(why_no_file(path(name)), HasSubstr("a link that leads nowhere"));
  EXPECT_THAT(why_no_file(path("c")), HasSubstr("cannot write into " + path("nowhere/")));
  EXPECT_THAT(why_no_file(path("d")), HasSubstr("is a directory, not a file"));
  EXPECT_EQ(names(), (std::set<std::string>{"a", "b", "c", "d", "e", "folder"}));
}

// Somebody could make us write over any file of ours.
TEST_F(WholeFileTest, ALinkThatSomebodyElseHasLaidWhereAllMayIsNotFollowed) {
  const std::string victim = folder_.write("victim", "mine");
  fs::create_directory(path("all"));
  fs::create_symlink("../victim", path("all/link"));
  if (lchown(path("all/link").c_str(), 12345, 12345) != 0) GTEST_SKIP() << "only root can give a link away";
  ASSERT_EQ(chmod(path("all").c_str(), 01777), 0);
  EXPECT_THAT(why_no_file(path("all/link")), HasSubstr("a link of another user"));
  EXPECT_NE(write_whole_file(path("all/link"), "text"), "");
  EXPECT_EQ(text_of(victim), "mine");
  ASSERT_EQ(chmod(path("all").c_str(), 0755), 0);
  EXPECT_EQ(write_whole_file(path("all/link"), "text"), "");
  EXPECT_EQ(text_of(victim), "text");
}

TEST_F(WholeFileTest, AStreamIsWrittenToAndStays) {
  EXPECT_EQ(why_no_file("/dev/null"), "");
  EXPECT_EQ(write_whole_file("/dev/null", "text"), "");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_EQ(write_whole_file("/dev/full", "text"), "cannot write /dev/full: No space left on device");
}

TEST_F(WholeFileTest, WhatCannotBeOpenedIsTold) {
  EXPECT_EQ(write_whole_file("/no/such/file", "text"),
            "cannot write /no/such/file: No such file or directory");
  EXPECT_NE(why_no_file("/no/such/file"), "");
  EXPECT_NE(why_no_file(""), "");
  EXPECT_NE(why_no_file(path("")), "");
}

}  // namespace
}  // namespace foreshock::cli
