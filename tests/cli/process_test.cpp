#include "cli/process.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/temporary_directory.h"

namespace foreshock::cli {
namespace {

constexpr int kTimeoutMs = 10000;

Captured shell(const std::string& script) {
  return run_and_capture({"sh", "-c", script}, own_environment(), kTimeoutMs);
}

TEST(Process, CapturesOutputAndStatus) {
  const Captured result = shell("echo out; echo err >&2; exit 3");
  EXPECT_EQ(result.output, "out\n");
  EXPECT_EQ(result.errors, "err\n");
  EXPECT_EQ(result.status.code, 3);
  EXPECT_EQ(result.status.signal, 0);
}

TEST(Process, TellsSignalsFromStatuses) {
  EXPECT_EQ(shell("kill -KILL $$").status.signal, SIGKILL);
  EXPECT_EQ(shell("exit 137").status.signal, 0);
}

TEST(Process, StatusesArriveThoughTheShellIgnoresThem) {
  signal(SIGCHLD, SIG_IGN);  // as after `trap '' CHLD`
  EXPECT_EQ(shell("exit 3").status.code, 3);
  EXPECT_EQ(signal(SIGCHLD, SIG_DFL), SIG_IGN);
}

TEST(Process, StopsWaiting) {
  const Captured result = run_and_capture({"sleep", "60"}, own_environment(), 100);
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.status.signal, SIGKILL);
}

TEST(Process, StopsWaitingForACommandThatHasClosedItsOutputs) {
  const Captured result =
      run_and_capture({"sh", "-c", "exec >&- 2>&-; exec sleep 60"}, own_environment(), 300);
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.status.signal, SIGKILL);
}

TEST(Process, ReportsWhatCannotStart) {
  EXPECT_EQ(run_and_capture({"no-such-program"}, {}, kTimeoutMs).start_error, ENOENT);
  EXPECT_EQ(status_of_failed_start(ENOENT), 127);
  EXPECT_EQ(status_of_failed_start(EACCES), 126);
}

TEST(Process, StartsScriptsWithoutInterpreterLineAsTheShellDoes) {
  const TemporaryDirectory directory;
  const std::string script = directory.write("script", "exit 5\n", 0700);
  const Captured result = run_and_capture({script}, own_environment(), kTimeoutMs);
  EXPECT_EQ(result.start_error, 0);
  EXPECT_EQ(result.status.code, 5);
}

TEST(Process, EndsAsTheOtherEnded) {
  for (const ExitStatus expected :
       {ExitStatus{0, 0}, ExitStatus{9, 0}, ExitStatus{143, SIGTERM}, ExitStatus{139, SIGSEGV}}) {
    const pid_t child = fork();
    if (child == 0) {
      sigset_t all;  // as in `run`, where the signal may be blocked
      sigfillset(&all);
      sigprocmask(SIG_BLOCK, &all, nullptr);
      end_like(expected);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WIFSIGNALED(status) ? WTERMSIG(status) : 0, expected.signal);
    if (expected.signal == 0) {
      EXPECT_EQ(WEXITSTATUS(status), expected.code);
    }
    EXPECT_FALSE(WIFSIGNALED(status) && WCOREDUMP(status));
  }
}

TEST(Process, EnvironmentIsReplacedByWholeName) {
  std::vector<std::string> environment = {"PATHS=1", "PATH=2"};
  EXPECT_EQ(environment_value(environment, "PATH"), "2");
  set_environment(&environment, "PATH", "3");
  set_environment(&environment, "NEW", "4");
  EXPECT_EQ(environment, (std::vector<std::string>{"PATHS=1", "PATH=3", "NEW=4"}));
}

}  // namespace
}  // namespace foreshock::cli
