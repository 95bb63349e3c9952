// Starts programs with posix_spawn, captures their output, passes this process's signals on to the command of
// `foreshock run`, and edits environments (lists of "NAME=value").
#include "cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>

namespace foreshock::cli {
namespace {

// Returns the null-terminated array of C strings that posix_spawn takes. It points into `words`.
std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

// Converts waitpid()'s status to a shell's exit code (128 + signal after a signal) and the signal, or 0.
ExitStatus decode(int status) {
  if (WIFSIGNALED(status)) return {128 + WTERMSIG(status), WTERMSIG(status)};
  return {WEXITSTATUS(status), 0};
}

// Appends the bytes that are available. Returns whether reading can go on: false after the end or an error.
bool read_some(int descriptor, std::string* text) {
  char buffer[4096];
  const ssize_t got = read(descriptor, buffer, sizeof buffer);
  if (got > 0) text->append(buffer, static_cast<size_t>(got));
  return got > 0 || (got < 0 && errno == EINTR);
}

int milliseconds_since(std::chrono::steady_clock::time_point start) {
  return static_cast<int>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start)
          .count());
}

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) == 0) read_end = ends[0], write_end = ends[1];
  }
  ~Pipe() {
    if (read_end >= 0) close(read_end);
    close_write();
  }
  void close_write() {
    if (write_end >= 0) close(write_end);
    write_end = -1;
  }
};

// SignalPasser passes these signals on to the command.
constexpr int kForwardedSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
constexpr int kTickMs = 200;  // without a signal, SignalPasser::wait_for() calls `tick` once in this time

bool is_ignored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Whether the terminal sent the signal (Ctrl-C) to the process group, so that the command `pid` has it too.
bool came_from_terminal(const siginfo_t& info, pid_t pid) {
  return info.si_code == SI_KERNEL && getpgid(pid) == getpgrp();
}

// While an object exists, exit statuses can be waited for. If this program was started with SIGCHLD ignored,
// as after `trap '' CHLD` in a shell, the kernel discards them.
class ExitStatusesKept {
 public:
  ExitStatusesKept() : before_(signal(SIGCHLD, SIG_DFL)) {}
  ~ExitStatusesKept() { signal(SIGCHLD, before_); }
  ExitStatusesKept(const ExitStatusesKept&) = delete;
  ExitStatusesKept& operator=(const ExitStatusesKept&) = delete;

 private:
  void (*const before_)(int);
};

}  // namespace

int spawn(const SpawnPlan& plan, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  short flags = 0;
  if (plan.signal_mask != nullptr) {
    posix_spawnattr_setsigmask(&attributes, plan.signal_mask);
    flags |= POSIX_SPAWN_SETSIGMASK;
  }
  if (plan.own_session) {
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    flags |= POSIX_SPAWN_SETSID;
  }
  posix_spawnattr_setflags(&attributes, flags);
  if (plan.output >= 0) posix_spawn_file_actions_adddup2(&actions, plan.output, STDOUT_FILENO);
  if (plan.errors >= 0) posix_spawn_file_actions_adddup2(&actions, plan.errors, STDERR_FILENO);

  const std::vector<char*> environment = pointers(plan.environment);
  std::vector<char*> words = pointers(plan.command);
  int error = posix_spawnp(pid, words[0], &actions, &attributes, words.data(), environment.data());
  if (error == ENOEXEC) {  // a script without "#!" line runs in /bin/sh, as with execvp
    words.insert(words.begin(), const_cast<char*>("/bin/sh"));
    error = posix_spawnp(pid, words[0], &actions, &attributes, words.data(), environment.data());
  }
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

std::optional<ExitStatus> poll_exit(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, WNOHANG) != pid) return std::nullopt;
  return decode(status);
}

// Ends this process as the command ended: by the same signal, else with the same exit code.
void end_like(const ExitStatus& status) {
  if (status.signal != 0) {
    const rlimit no_core = {0, 0};  // the command may have written one; this process must not
    setrlimit(RLIMIT_CORE, &no_core);
    prctl(PR_SET_DUMPABLE, 0);  // needed if core_pattern is a pipe: then the kernel ignores the limit
    signal(status.signal, SIG_DFL);
    sigset_t this_signal;
    sigemptyset(&this_signal);
    sigaddset(&this_signal, status.signal);
    kill(getpid(), status.signal);  // if SignalPasser has blocked the signal, it arrives when unblocked below
    sigprocmask(SIG_UNBLOCK, &this_signal, nullptr);
  }
  _exit(status.code);  // also after a signal whose default action does not end a process
}

int status_of_failed_start(int error) { return error == ENOENT ? 127 : 126; }  // as shells do

Captured run_and_capture(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                         int timeout_ms, void (*progress)(const Captured&)) {
  const ExitStatusesKept kept;
  Captured result;
  Pipe output, errors;
  const SpawnPlan plan = {
      .command = command, .environment = environment, .output = output.write_end, .errors = errors.write_end};
  pid_t pid = -1;
  result.start_error = spawn(plan, &pid);
  if (result.start_error != 0) return result;
  output.close_write();
  errors.close_write();

  const auto start = std::chrono::steady_clock::now();
  // Returns the milliseconds that the command still has, and kills the command if that is 0 or less. Must be
  // called before waitpid() has reaped the command: afterwards another process may have its pid.
  const auto time_left_or_kill = [&] {
    const int left = timeout_ms - milliseconds_since(start);
    if (left <= 0) {
      result.timed_out = true;
      kill(pid, SIGKILL);
    }
    return left;
  };
  bool output_open = true, errors_open = true;
  while (output_open || errors_open) {
    const int left = time_left_or_kill();
    if (left <= 0) break;
    pollfd ready[2] = {{output_open ? output.read_end : -1, POLLIN, 0},
                       {errors_open ? errors.read_end : -1, POLLIN, 0}};
    poll(ready, 2, left);  // ignores the descriptor -1 of a closed output
    if (ready[0].revents != 0) output_open = read_some(output.read_end, &result.output);
    if (ready[1].revents != 0) errors_open = read_some(errors.read_end, &result.errors);
    if (progress != nullptr && (ready[0].revents | ready[1].revents) != 0) progress(result);
  }
  int status = 0;
  pid_t ended = 0;
  do {  // a command that has closed its outputs may still run: looks every millisecond until its time is over
    ended = waitpid(pid, &status, result.timed_out ? 0 : WNOHANG);
    if (ended == 0 && time_left_or_kill() > 0) poll(nullptr, 0, 1);
  } while (ended == 0 || (ended < 0 && errno == EINTR));
  result.status = decode(status);
  return result;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) result.push_back(*entry);
  return result;
}

std::string environment_value(const std::vector<std::string>& environment, const std::string& name) {
  for (const std::string& entry : environment)
    if (entry.compare(0, name.size() + 1, name + "=") == 0) return entry.substr(name.size() + 1);
  return "";
}

void set_environment(std::vector<std::string>* environment, const std::string& name,
                     const std::string& value) {
  const std::string entry = name + "=" + value;
  for (std::string& old : *environment) {
    if (old.compare(0, name.size() + 1, name + "=") != 0) continue;
    old = entry;
    return;
  }
  environment->push_back(entry);
}

SignalPasser::SignalPasser() {
  sigemptyset(&waited_);  // the signals that next_signal() takes
  sigaddset(&waited_, SIGCHLD);
  for (int signal : kForwardedSignals) sigaddset(&waited_, signal);
  sigemptyset(&stop_signals_);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // A blocked signal becomes pending even if it is ignored (as SIGHUP under nohup), and would stop the run.
    if (!is_ignored(signal)) sigaddset(&stop_signals_, signal);
  }
  signal(SIGCHLD, SIG_DFL);  // if SIGCHLD were ignored, exit statuses would be lost
  sigset_t blocked = waited_;
  // Blocked too, because a failed write must not end this process.
  for (int signal : {SIGPIPE, SIGXFSZ}) sigaddset(&blocked, signal);
  sigprocmask(SIG_BLOCK, &blocked, &original_);  // the command is started with the original mask
}

// Waits for a signal and returns it; -1: none came in `period_ms`, or another signal's handler ran.
int SignalPasser::next_signal(int period_ms, siginfo_t* info) {
  const timespec period = {period_ms / 1000, period_ms % 1000 * 1000000L};
  const int signal = sigtimedwait(&waited_, info, &period);
  if (signal > 0 && stop_signal_ == 0 && is_stop_signal(signal)) stop_signal_ = signal;
  return signal;
}

int SignalPasser::take_pending_stop_signal() {
  const timespec no_wait = {0, 0};
  const int signal = sigtimedwait(&stop_signals_, nullptr, &no_wait);
  return signal > 0 ? signal : 0;
}

ExitStatus SignalPasser::wait_for(pid_t pid, const std::function<void()>& tick) {
  for (;;) {
    if (const std::optional<ExitStatus> status = poll_exit(pid)) return *status;
    siginfo_t info = {};
    const int signal = next_signal(kTickMs, &info);
    if (signal <= 0) tick();
    // SIGCHLD is not for the command: it makes poll_exit() look again.
    if (signal > 0 && signal != SIGCHLD && !came_from_terminal(info, pid)) kill(pid, signal);
  }
}

bool SignalPasser::interrupted_within(int period_ms) {
  siginfo_t info = {};
  const int signal = next_signal(period_ms, &info);
  return signal > 0 && is_stop_signal(signal);
}

}  // namespace foreshock::cli
