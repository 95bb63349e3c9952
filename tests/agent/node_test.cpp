#include "agent/node.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.h"

namespace foreshock {
namespace {

namespace fs = std::filesystem;

class Cgroup : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(root_ + "/slurm/job_7/step_0"); }

  void limit(const std::string& cgroup, const std::string& text) {
    std::ofstream(root_ + cgroup + "/cpu.max") << text << "\n";
  }
  double cores_in(const std::string& cgroups) {
    std::ofstream(root_ + "/self") << cgroups;
    return cgroup_cores(root_ + "/self", root_);
  }

  const TemporaryDirectory temporary_;
  const std::string root_ = temporary_.path();
};

TEST_F(Cgroup, TheTightestOfOursAndThoseAboveCounts) {
  const std::string ours = "1:name=systemd:/elsewhere\n0::/slurm/job_7/step_0\n";
  EXPECT_TRUE(std::isinf(cores_in(ours)));
  limit("/slurm/job_7", "400000 100000");
  EXPECT_EQ(cores_in(ours), 4);
  limit("/slurm/job_7/step_0", "max 100000");
  EXPECT_EQ(cores_in(ours), 4);
  limit("/slurm/job_7/step_0", "150000 100000");
  EXPECT_EQ(cores_in(ours), 1.5);
  limit("", "100000 100000");
  EXPECT_EQ(cores_in(ours), 1);
}

TEST_F(Cgroup, InANamespaceOursIsTheRoot) {
  limit("", "200000 100000");
  limit("/slurm/job_7", "100000 100000");
  EXPECT_EQ(cores_in("0::/\n"), 2);
  EXPECT_EQ(cores_in("0::/../of/the/host\n"), 2) << "a path that is not mounted here";
  EXPECT_EQ(cores_in("4:memory:/slurm/job_7\n"), 2) << "of another controller";
  EXPECT_EQ(cores_in(""), 2);
}

// As Docker and Slurm of older machines have it: a tree of its own for the controllers that stand together.
TEST_F(Cgroup, OfVersion1Too) {
  const std::string ours = "5:memory:/elsewhere\n4:cpu,cpuacct:/slurm/job_7\n0::/\n";
  fs::create_directories(root_ + "/cpu,cpuacct/slurm/job_7");
  const auto limit_of = [&](const std::string& cgroup, const char* quota) {
    std::ofstream(root_ + "/cpu,cpuacct" + cgroup + "/cpu.cfs_quota_us") << quota << "\n";
    std::ofstream(root_ + "/cpu,cpuacct" + cgroup + "/cpu.cfs_period_us") << "100000\n";
  };
  limit_of("", "-1");
  EXPECT_TRUE(std::isinf(cores_in(ours)));
  limit_of("/slurm", "300000");
  limit_of("/slurm/job_7", "-1");
  EXPECT_EQ(cores_in(ours), 3);
  limit_of("/slurm/job_7", "150000");
  EXPECT_EQ(cores_in(ours), 1.5);
  EXPECT_TRUE(std::isinf(cores_in("4:cpuset,cpuacct:/slurm/job_7\n"))) << "not the controller of quotas";
  limit_of("", "200000");
  EXPECT_EQ(cores_in("4:cpu,cpuacct:/docker/0123\n"), 2) << "a container sees its own as the root";
  limit("", "100000 100000");
  EXPECT_EQ(cores_in(ours), 1) << "the tighter of both";
}

// A service with hundreds of runs needs more than the 1024 that are usual.
TEST(Node, TakesAsManyDescriptorsAsItMay) {
  rlimit before = {}, raised = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {std::min<rlim_t>(256, before.rlim_max), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  raise_descriptor_limit();
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &raised), 0);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(raised.rlim_cur, std::min<rlim_t>(1 << 14, before.rlim_max));
  EXPECT_EQ(raised.rlim_max, before.rlim_max);
}

}  // namespace
}  // namespace foreshock
