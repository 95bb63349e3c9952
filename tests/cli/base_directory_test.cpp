#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/run_dir.h"
#include "tests/support/temporary_directory.h"

namespace foreshock::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

bool is_tmpfs(const std::string& path) {
  struct statfs info;
  return statfs(path.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC;
}

class BaseDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_tmpfs("/dev/shm") || access("/dev/shm", W_OK) != 0)
      GTEST_SKIP() << "/dev/shm is no tmpfs of ours here";
  }
  void TearDown() override { unsetenv("FORESHOCK_DIR"); }
};

TEST_F(BaseDirectoryTest, IsCreatedPrivate) {
  const TemporaryDirectory parent("/dev/shm");
  const std::string base = parent.path() + "/base";
  EXPECT_EQ(prepare_base_directory(base), "");
  struct stat info;
  ASSERT_EQ(stat(base.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_EQ(prepare_base_directory(base), "");
}

TEST_F(BaseDirectoryTest, OthersMustNotReachIn) {
  const TemporaryDirectory parent("/dev/shm");
  const std::string open_to_all = parent.path() + "/open", target = parent.path() + "/target";
  ASSERT_EQ(mkdir(open_to_all.c_str(), 0700), 0);
  ASSERT_EQ(chmod(open_to_all.c_str(), 0755), 0);
  EXPECT_THAT(prepare_base_directory(open_to_all), HasSubstr("mode 0700"));
  ASSERT_EQ(mkdir(target.c_str(), 0700), 0);
  const std::string link = parent.path() + "/link";
  ASSERT_EQ(symlink(target.c_str(), link.c_str()), 0);
  EXPECT_THAT(prepare_base_directory(link), HasSubstr("not a directory of this user"));
}

TEST_F(BaseDirectoryTest, DiskIsRefused) {
  if (is_tmpfs(std::filesystem::temp_directory_path())) GTEST_SKIP() << "no directory on disk at hand";
  const TemporaryDirectory parent;
  EXPECT_THAT(prepare_base_directory(parent.path() + "/base"), HasSubstr("not on tmpfs"));
  EXPECT_THAT(prepare_base_directory("relative"), HasSubstr("absolute"));
  setenv("FORESHOCK_DIR", parent.path().c_str(), 1);
  const BaseDirectory base = choose_base_directory();
  EXPECT_EQ(base.path, "");
  EXPECT_THAT(base.problem, HasSubstr("FORESHOCK_DIR"));
}

TEST_F(BaseDirectoryTest, ASharedDirectoryGetsOneForTheUser) {
  const TemporaryDirectory parent("/dev/shm");
  ASSERT_EQ(chmod(parent.path().c_str(), 0777), 0);
  setenv("FORESHOCK_DIR", parent.path().c_str(), 1);
  EXPECT_EQ(choose_base_directory().path, parent.path() + "/foreshock-" + std::to_string(geteuid()));
  ASSERT_EQ(chmod(parent.path().c_str(), 0700), 0);
  EXPECT_EQ(choose_base_directory().path, parent.path());
}

TEST_F(BaseDirectoryTest, LookingCreatesNothing) {
  const TemporaryDirectory parent("/dev/shm");
  setenv("FORESHOCK_DIR", (parent.path() + "/new/").c_str(), 1);
  EXPECT_THAT(base_directory_candidates(), ElementsAre(parent.path() + "/new"));
  EXPECT_NE(access((parent.path() + "/new").c_str(), F_OK), 0);
}

}  // namespace
}  // namespace foreshock::cli
