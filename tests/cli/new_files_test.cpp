#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "cli/files.h"
#include "tests/support/temporary_directory.h"

namespace foreshock::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(NewFiles, AreThereTogetherAtTheEnd) {
  const TemporaryDirectory place;
  const std::string folder = place.path() + "/a/b";
  NewFiles files(folder);
  EXPECT_EQ(files.write("one", "1"), "");
  EXPECT_EQ(files.write("in/two", "2"), "");
  EXPECT_TRUE(files.has("one"));
  EXPECT_FALSE(files.has("two"));
  EXPECT_EQ(files.write("one", "1"), "");
  EXPECT_FALSE(fs::exists(folder + "/one"));
  EXPECT_EQ(files.finish(), "");
  EXPECT_EQ(text_of(folder + "/one"), "11");
  EXPECT_EQ(text_of(folder + "/in/two"), "2");
}

TEST(NewFiles, WithoutAnEndNothingIsLeftOfThem) {
  const TemporaryDirectory place;
  fs::create_directory(place.path() + "/a");
  {
    NewFiles files(place.path() + "/a/b");
    EXPECT_EQ(files.write("one", "1"), "");
    EXPECT_EQ(files.write("in/two", "2"), "");
  }
  EXPECT_TRUE(fs::is_empty(place.path() + "/a"));
}

TEST(NewFiles, WhatIsThereAlreadyStays) {
  const TemporaryDirectory place;
  place.write("one", "mine");
  NewFiles files(place.path());
  EXPECT_EQ(files.write("one", "1"), place.path() + "/one: is there already; choose another directory");
  EXPECT_EQ(text_of(place.path() + "/one"), "mine");
}

TEST(NewFiles, WhenOneCannotBeNamedNoneIsThere) {
  const TemporaryDirectory place;
  NewFiles files(place.path());
  EXPECT_EQ(files.write("one", "1"), "");
  EXPECT_EQ(files.write("two", "2"), "");
  fs::create_directory(place.path() + "/two");  // somebody else was faster
  EXPECT_THAT(files.finish(), HasSubstr("none of the files is there"));
  EXPECT_FALSE(fs::exists(place.path() + "/one"));
}

}  // namespace
}  // namespace foreshock::cli
