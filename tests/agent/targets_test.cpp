#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "agent/agent.h"
#include "tests/support/temporary_directory.h"

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

class TargetFileTest : public testing::Test {
 protected:
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TemporaryDirectory temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(TargetFileTest, IsReplacedWholeAndOnlyWhenItChanges) {
  const std::string path = folder_ + "/targets.json";
  TargetFile file(path, "me");
  struct stat first = {}, second = {}, third = {};
  EXPECT_EQ(file.write("[]"), "");
  ASSERT_EQ(stat(path.c_str(), &first), 0);
  EXPECT_EQ(first.st_mode & 0777, 0644u);
  EXPECT_EQ(file.write("[]"), "");
  ASSERT_EQ(stat(path.c_str(), &second), 0);
  EXPECT_EQ(first.st_ino, second.st_ino);
  EXPECT_EQ(first.st_mtim.tv_nsec, second.st_mtim.tv_nsec);
  EXPECT_EQ(file.write("[1]"), "");
  ASSERT_EQ(stat(path.c_str(), &third), 0);
  EXPECT_EQ(third.st_size, 3);
  TargetFile nowhere(folder_ + "/nothing/targets.json", "me");
  EXPECT_NE(nowhere.write("[]").find("cannot be written"), std::string::npos);
}

TEST_F(TargetFileTest, ALinkOfAnotherUserToItsFolderIsNotFollowed) {
  fs::create_directory(folder_ + "/all");
  fs::create_directory(folder_ + "/target");
  fs::create_symlink("../target", folder_ + "/all/link");
  const std::string path = folder_ + "/all/link/targets.json";
  EXPECT_EQ(TargetFile(path, "me").write("[]"), "") << "a link of this user";
  if (lchown((folder_ + "/all/link").c_str(), 12345, 12345) != 0) GTEST_SKIP() << "needs root";
  ASSERT_EQ(chmod((folder_ + "/all").c_str(), 01777), 0);
  TargetFile file(path, "me");
  const std::string why = file.write("[1]");
  EXPECT_NE(why.find("link is a link of another user"), std::string::npos) << why;
  file.remove();
  EXPECT_EQ(text_of(folder_ + "/target/targets.json"), "[]");
}

TEST_F(TargetFileTest, IsKeptByOneAgentAtATime) {
  const std::string path = folder_ + "/targets.json";
  TargetFile second(path, "second");
  {
    TargetFile first(path, "first");
    EXPECT_EQ(first.write("[1]"), "");
    EXPECT_NE(second.write("[2]").find("another agent"), std::string::npos);
    second.remove();
    EXPECT_EQ(text_of(path), "[1]") << "neither overwritten nor taken away";
    first.remove();
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_EQ(second.write("[2]"), "");
  EXPECT_EQ(text_of(path), "[2]");
}

TEST_F(TargetFileTest, InADirectoryEachRunHasItsOwn) {
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
  TargetFile first(folder_, "first"), second(folder_, "second");
  EXPECT_EQ(first.write("[1]"), "");
  EXPECT_EQ(second.write("[2]"), "");
  EXPECT_EQ(text_of(folder_ + "/first." + host + ".json"), "[1]");
  EXPECT_EQ(text_of(folder_ + "/second." + host + ".json"), "[2]");
  first.remove();
  EXPECT_FALSE(fs::exists(folder_ + "/first." + host + ".json"));
  EXPECT_TRUE(fs::exists(folder_ + "/second." + host + ".json"));
}

// What an agent that was killed leaves names a port that may be another program's by now.
TEST_F(TargetFileTest, InADirectoryThoseOfKilledAgentsAreRemoved) {
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
  const auto path_of = [&](const std::string& run) { return folder_ + "/" + run + "." + host + ".json"; };
  const std::string text = targets_json({{"127.0.0.1", 9847, "killed"}});
  const auto leave = [&](const std::string& path, const std::string& what) { std::ofstream(path) << what; };
  {
    TargetFile killed(folder_, "killed");
    EXPECT_EQ(killed.write(text), "");
  }
  TargetFile alive(folder_, "alive"), own(folder_, "own");
  EXPECT_EQ(alive.write(text), "");
  EXPECT_EQ(own.write(text), "");
  leave(path_of("foreign"), text);  // no agent has ever locked it
  leave(path_of("node_exporter"), R"([{"targets": ["h:9100"], "labels": {}, "by": "hand"}])");
  leave(folder_ + "/." + ("node_exporter." + std::string(host)) + ".json.lock", "");
  leave(folder_ + "/killed.elsewhere.json", text);
  leave(folder_ + "/.killed.elsewhere.json.lock", "");

  own.remove_abandoned();
  EXPECT_FALSE(fs::exists(path_of("killed")));
  for (const char* kept : {"alive", "own", "foreign", "node_exporter"})
    EXPECT_TRUE(fs::exists(path_of(kept))) << kept;
  EXPECT_TRUE(fs::exists(folder_ + "/killed.elsewhere.json")) << "of another host: its lock is not seen here";

  TargetFile file(folder_ + "/one.json", "one");
  leave(path_of("killed"), text);
  file.remove_abandoned();
  EXPECT_TRUE(fs::exists(path_of("killed"))) << "only in a directory that was given";
}

}  // namespace
}  // namespace foreshock
