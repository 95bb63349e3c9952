#include "agent/targets.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace foreshock {
namespace {

namespace fs = std::filesystem;

TEST(Targets, AreWhatPrometheusReads) {
  const auto json = nlohmann::json::parse(
      targets_json({{"127.0.0.1", 9847, "me"}, {"::1", 9848, ""}, {"unix:/tmp/socket", 0, ""}}));
  ASSERT_EQ(json.size(), 2u) << "no socket";
  EXPECT_EQ(json[0]["targets"], nlohmann::json::array({"127.0.0.1:9847"}));
  EXPECT_EQ(json[0]["labels"]["__meta_foreshock_run"], "me");
  EXPECT_EQ(json[1]["targets"][0], "[::1]:9848");
  EXPECT_EQ(json[1]["labels"], nlohmann::json::object());
  EXPECT_EQ(targets_json({}), "[]");
}

TEST(Targets, EveryAddressIsToldByTheNameOfTheHost) {
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  const auto json = nlohmann::json::parse(targets_json({{"0.0.0.0", 1, ""}}));
  EXPECT_EQ(json[0]["targets"][0], std::string(name) + ":1");
}

TEST(Targets, TheFileIsReplacedWholeAndOnlyWhenItChanges) {
  std::string pattern = testing::TempDir() + "targets-XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const std::string path = pattern + "/targets.json";
  struct stat first = {}, second = {}, third = {};
  EXPECT_TRUE(write_targets(path, "[]"));
  ASSERT_EQ(stat(path.c_str(), &first), 0);
  EXPECT_EQ(first.st_mode & 0777, 0644u);
  EXPECT_TRUE(write_targets(path, "[]"));
  ASSERT_EQ(stat(path.c_str(), &second), 0);
  EXPECT_EQ(first.st_ino, second.st_ino);
  EXPECT_EQ(first.st_mtim.tv_nsec, second.st_mtim.tv_nsec);
  EXPECT_TRUE(write_targets(path, "[1]"));
  ASSERT_EQ(stat(path.c_str(), &third), 0);
  EXPECT_EQ(third.st_size, 3);
  EXPECT_FALSE(write_targets(pattern + "/nothing/targets.json", "[]"));
  fs::remove_all(pattern);
}

}  // namespace
}  // namespace foreshock
