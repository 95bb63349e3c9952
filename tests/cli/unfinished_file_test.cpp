#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>

#include "cli/files.h"
#include "tests/support/temporary_directory.h"

namespace foreshock::cli {
namespace {

namespace fs = std::filesystem;

// How a child that does this ends: 0 on its own, or by which signal.
int ended_by(const std::function<void()>& act) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    act();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(UnfinishedFile, IsGoneUnlessItWasFinished) {
  const TemporaryDirectory folder;
  {
    UnfinishedFile file(folder.path());
    EXPECT_GE(file.descriptor(), 0);
    EXPECT_FALSE(fs::is_empty(folder.path()));
    EXPECT_FALSE(file.finish("/no/such/name"));
    close(file.descriptor());
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
  {
    UnfinishedFile file(folder.path());
    close(file.descriptor());
    EXPECT_TRUE(file.finish(folder.path() + "/name"));
  }
  EXPECT_TRUE(fs::exists(folder.path() + "/name"));
}

TEST(UnfinishedFile, WithoutADirectoryThereIsNone) {
  const UnfinishedFile file("/no/such/directory");
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(file.descriptor(), -1);
}

TEST(UnfinishedFile, ASignalThatEndsTheProcessTakesAllOfThem) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    const TemporaryDirectory folder;
    EXPECT_EQ(ended_by([&] {
                signal(number, SIG_DFL);
                const UnfinishedFile one(folder.path()), other(folder.path());
                UnfinishedFile finished(folder.path());
                finished.finish(folder.path() + "/stays");
                raise(number);
              }),
              number);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1) << number;
  }
}

TEST(UnfinishedFile, WhatIsIgnoredStaysSo) {
  const TemporaryDirectory folder;
  EXPECT_EQ(ended_by([&] {
              signal(SIGHUP, SIG_IGN);
              UnfinishedFile file(folder.path());
              raise(SIGHUP);
              file.finish(folder.path() + "/stays");
              raise(SIGHUP);
            }),
            0);
  EXPECT_TRUE(fs::exists(folder.path() + "/stays"));
}

TEST(UnfinishedFile, AfterTheLastASignalDoesWhatItDid) {
  EXPECT_EQ(ended_by([] {
              signal(SIGTERM, SIG_DFL);
              {
                const TemporaryDirectory folder;
                const UnfinishedFile file(folder.path());
              }
              struct sigaction now {};
              sigaction(SIGTERM, nullptr, &now);
              _exit(now.sa_handler == SIG_DFL ? 0 : 1);
            }),
            0);
}

TEST(UnfinishedFile, ALimitOnFilesIsAnErrorAndNoSignal) {
  const TemporaryDirectory folder;
  EXPECT_EQ(ended_by([&] {
              signal(SIGXFSZ, SIG_DFL);
              const rlimit small = {10, 10};
              setrlimit(RLIMIT_FSIZE, &small);
              const UnfinishedFile file(folder.path());
              const bool first = write(file.descriptor(), "0123456789", 10) == 10;
              const bool second = write(file.descriptor(), "0", 1) < 0 && errno == EFBIG;
              _exit(first && second ? 0 : 1);
            }),
            0);
}

}  // namespace
}  // namespace foreshock::cli
