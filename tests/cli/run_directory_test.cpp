#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "cli/agent_client.h"
#include "cli/files.h"
#include "cli/process.h"
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

// The launcher of a run whose agent.lock another process holds, and never lets go.
TEST(RunDirectory, AtTheEndNobodyWaitsLongForALockThatAnotherProcessHolds) {
  using Clock = std::chrono::steady_clock;
  const TemporaryDirectory base;
  RunDirectory directory;
  ASSERT_EQ(directory.enter(base.path(), "run"), "");
  FileLock agent_lock, base_lock;
  ASSERT_TRUE(agent_lock.try_lock(directory.path() + "/agent.lock", LOCK_EX));
  ExitExchange exchange;
  ASSERT_EQ(exchange.reserve(directory.path()), "");
  exchange.write_exit_status({}, 0);
  SignalPasser signals;
  AgentKeeper keeper(directory.path(), {"/bin/false"});
  auto begin = Clock::now();
  const ExitExchange::Answer answer = exchange.wait(&signals, &keeper);
  EXPECT_EQ(answer.problem,
            "no agent follows the run: another process holds " + directory.path() + "/agent.lock");
  EXPECT_TRUE(answer.is_agent_stuck);
  // It waits for 5 s, and for a summary of a live agent 30 s.
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  ASSERT_TRUE(base_lock.try_lock(base.path() + "/lock", LOCK_EX));
  begin = Clock::now();
  bool was_killed = false;
  EXPECT_FALSE(directory.leave([&] { was_killed = true; }, answer.is_agent_stuck));
  EXPECT_TRUE(was_killed);
  base_lock.release();
  EXPECT_FALSE(directory.leave(nullptr, answer.is_agent_stuck));
  // At most 0.1 s each for run.lock and agent.lock; without the argument 10 s and 5 s.
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
  sigprocmask(SIG_SETMASK, signals.original_mask(), nullptr);  // which the next test of this process needs
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
