#include "cli/command_wait.h"

#include <time.h>
#include <unistd.h>

namespace foreshock::cli {
namespace {

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
constexpr int kTickMs = 200;

bool is_ignored(int signal) {
  struct sigaction now = {};
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

// The terminal (and a hang-up of it) signals the whole foreground group: a command in our group has it
// already.
bool came_from_terminal(const siginfo_t& info, pid_t pid) {
  return info.si_code == SI_KERNEL && getpgid(pid) == getpgrp();
}

}  // namespace

SignalPasser::SignalPasser() {
  sigemptyset(&waited_);
  sigaddset(&waited_, SIGCHLD);
  for (int signal : kPassedOn) sigaddset(&waited_, signal);
  sigemptyset(&asking_);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // A blocked signal is queued although it is ignored.
    if (!is_ignored(signal)) sigaddset(&asking_, signal);
  }
  signal(SIGCHLD, SIG_DFL);  // ignored, exit statuses would be lost
  sigset_t blocked = waited_;
  for (int signal : {SIGPIPE, SIGXFSZ}) sigaddset(&blocked, signal);  // our writes fail, and do not kill
  sigprocmask(SIG_BLOCK, &blocked, &original_);
}

int SignalPasser::next_signal(int period_ms, siginfo_t* info) {
  const timespec period = {period_ms / 1000, period_ms % 1000 * 1000000L};
  const int signal = sigtimedwait(&waited_, info, &period);
  if (signal > 0 && asks_to_stop(signal)) asked_to_stop_ = true;
  return signal;
}

int SignalPasser::stop_before_start() {
  const timespec at_once = {0, 0};
  const int signal = sigtimedwait(&asking_, nullptr, &at_once);
  return signal > 0 ? signal : 0;
}

ExitStatus SignalPasser::wait_for(pid_t pid, const std::function<void()>& tick) {
  for (;;) {
    if (const std::optional<ExitStatus> status = poll_exit(pid)) return *status;
    siginfo_t info = {};
    const int signal = next_signal(kTickMs, &info);
    if (signal <= 0) tick();
    if (signal > 0 && signal != SIGCHLD && !came_from_terminal(info, pid)) kill(pid, signal);
  }
}

bool SignalPasser::interrupted_within(int period_ms) {
  siginfo_t info = {};
  const int signal = next_signal(period_ms, &info);
  return signal > 0 && asks_to_stop(signal);
}

}  // namespace foreshock::cli
