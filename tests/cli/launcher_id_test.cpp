#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

#include "cli/run_dir.h"

namespace foreshock::cli {
namespace {

constexpr uint64_t kNode = 4026531836;  // `readlink /proc/1/ns/pid` of a node

TEST(LauncherId, OnANodeItIsThePid) {
  EXPECT_EQ(launcher_id(4711, kNode), 4711u);
  EXPECT_EQ(launcher_id(4711, 0), 4711u) << "unknown";
}

TEST(LauncherId, NoTwoContainersHaveTheSame) {
  std::set<uint64_t> ids;
  size_t count = 0;
  for (const uint64_t space : {kNode, uint64_t{4026531840}, uint64_t{4026532841}, uint64_t{UINT32_MAX}}) {
    for (const pid_t pid : {1, 7, (1 << 22) - 1}) {
      ids.insert(launcher_id(pid, space));
      ++count;
      EXPECT_LT(launcher_id(pid, space), uint64_t{1} << 53) << "a number that JSON can bear";
    }
  }
  EXPECT_EQ(ids.size(), count);
}

TEST(LauncherId, EndsInOurPid) { EXPECT_EQ(launcher_id() % (1 << 22), static_cast<uint64_t>(getpid())); }

}  // namespace
}  // namespace foreshock::cli
