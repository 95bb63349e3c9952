#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/run_dir.h"
#include "tests/support/temporary_directory.h"

namespace foreshock::cli {
namespace {

// A process that holds the lock a trainer holds on its segment.
class Trainer {
 public:
  explicit Trainer(const std::string& segment) {
    int ready[2];
    if (pipe(ready) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      const int descriptor = open(segment.c_str(), O_RDWR | O_CREAT, 0600);
      struct flock lock = {};
      lock.l_type = F_WRLCK;
      fcntl(descriptor, F_SETLK, &lock);
      [[maybe_unused]] const ssize_t told = write(ready[1], "x", 1);
      ::pause();
      _exit(0);
    }
    char byte;
    [[maybe_unused]] const ssize_t heard = read(ready[0], &byte, 1);
    close(ready[0]);
    close(ready[1]);
  }
  ~Trainer() { end(); }
  void end() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

TEST(RunDirectory, TheLastToLeaveRemovesIt) {
  const TemporaryDirectory base;
  RunDirectory first, second;
  ASSERT_EQ(first.enter(base.path(), "run"), "");
  ASSERT_EQ(second.enter(base.path(), "run"), "");
  EXPECT_FALSE(first.leave());
  EXPECT_TRUE(std::filesystem::exists(second.path()));
  EXPECT_TRUE(second.leave());
  EXPECT_FALSE(std::filesystem::exists(second.path()));
}

TEST(RunDirectory, ALivingTrainerKeepsItsDirectory) {
  const TemporaryDirectory base;
  RunDirectory directory;
  ASSERT_EQ(directory.enter(base.path(), "run"), "");
  Trainer trainer(directory.path() + "/0-1.seg");
  EXPECT_TRUE(has_live_segment(directory.path()));
  EXPECT_FALSE(directory.leave());
  EXPECT_TRUE(std::filesystem::exists(directory.path()));
  trainer.end();
  EXPECT_FALSE(has_live_segment(directory.path()));
  EXPECT_TRUE(remove_if_stale(directory.path()));
}

TEST(RunDirectory, StaleOnesGoWhenTheNextRunComes) {
  const TemporaryDirectory base;
  const std::string stale = base.path() + "/stale", foreign = base.path() + "/foreign";
  mkdir(stale.c_str(), 0700);
  base.write("stale/run.lock", "");
  base.write("stale/0-1.seg", "");
  mkdir(foreign.c_str(), 0700);
  base.write("foreign/precious", "");
  RunDirectory other, directory;
  ASSERT_EQ(other.enter(base.path(), "other"), "");
  EXPECT_FALSE(std::filesystem::exists(stale));
  ASSERT_EQ(directory.enter(base.path(), "run"), "");
  EXPECT_TRUE(std::filesystem::exists(other.path()));
  EXPECT_TRUE(std::filesystem::exists(foreign + "/precious"));
}

TEST(RunDirectory, AnAgentAtWorkKeepsItsDirectory) {
  const TemporaryDirectory base;
  base.write("run.lock", "");
  FileLock agent;
  ASSERT_TRUE(agent.try_lock(base.path() + "/agent.lock", LOCK_EX));
  EXPECT_FALSE(remove_if_stale(base.path()));
}

}  // namespace
}  // namespace foreshock::cli
