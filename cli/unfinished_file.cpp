#include "cli/unfinished_file.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace foreshock::cli {
namespace {

constexpr std::array kEnding = {SIGHUP,  SIGINT,  SIGQUIT, SIGPIPE, SIGTERM,
                                SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU};

// Changed only while the signals are held.
std::vector<const char*> unfinished;

class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_;
};

void remove_all_and_end(int number) {
  for (const char* path : unfinished) unlink(path);
  signal(number, SIG_DFL);
  raise(number);  // it ends the process when this returns
}

// What is ignored (nohup), or somebody else's, is left so.
void replace(int number, void (*from)(int), void (*to)(int)) {
  struct sigaction now {};
  if (sigaction(number, nullptr, &now) == 0 && now.sa_handler == from) signal(number, to);
}

void watch_signals() {
  for (const int number : kEnding) replace(number, SIG_DFL, remove_all_and_end);
  replace(SIGXFSZ, SIG_DFL, SIG_IGN);
}

void leave_signals() {
  for (const int number : kEnding) replace(number, remove_all_and_end, SIG_DFL);
}

}  // namespace

UnfinishedFile::UnfinishedFile(const std::string& directory) : path_(directory + "/.foreshock-XXXXXX") {
  const SignalsHeld held;
  descriptor_ = mkostemp(path_.data(), O_CLOEXEC);
  if (descriptor_ < 0) {
    path_.clear();
    return;
  }
  if (unfinished.empty()) watch_signals();
  unfinished.push_back(path_.c_str());
}

UnfinishedFile::~UnfinishedFile() {
  const SignalsHeld held;
  if (path_.empty()) return;
  unlink(path_.c_str());
  leave_out();
}

bool UnfinishedFile::finish(const std::string& name) {
  const SignalsHeld held;
  if (std::rename(path_.c_str(), name.c_str()) != 0) return false;
  leave_out();
  return true;
}

void UnfinishedFile::leave_out() {
  std::erase(unfinished, path_.c_str());
  path_.clear();
  if (unfinished.empty()) leave_signals();
}

}  // namespace foreshock::cli
