// Runs programs: captures their output, or waits for the command of `foreshock run` and passes signals to it.
#ifndef FORESHOCK_CLI_PROCESS_H_
#define FORESHOCK_CLI_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace foreshock::cli {

struct ExitStatus {
  int code = 0;    // exit status; 128 + signal if a signal ended the process
  int signal = 0;  // the signal that ended the process; 0: none
};

struct SpawnPlan {
  std::vector<std::string> command;       // must not be empty; the first word is looked up in PATH
  std::vector<std::string> environment;   // "NAME=value"
  const sigset_t* signal_mask = nullptr;  // signal mask of the child; nullptr: that of this process
  bool own_session = false;               // true: the child calls setsid, and its standard input is /dev/null
  int output = -1;                        // descriptor for standard output; -1: that of this process
  int errors = -1;                        // descriptor for standard error; -1: that of this process
};

// Starts a process and sets *pid. Returns 0 or an errno.
int spawn(const SpawnPlan& plan, pid_t* pid);

// Returns the exit status of the child process `pid`; nullopt while it runs. Does not wait.
std::optional<ExitStatus> poll_exit(pid_t pid);

// Ends this process with the same exit status, or by the same signal, as `status`. Writes no core file.
[[noreturn]] void end_like(const ExitStatus& status);

// Returns the exit status of a shell for a command whose start failed with errno `error`: 127 if the command
// is missing, else 126.
int status_of_failed_start(int error);

struct Captured {       // the result of run_and_capture()
  int start_error = 0;  // errno if the command could not be started (other members are unset); 0: it started
  bool timed_out = false;
  ExitStatus status;
  std::string output, errors;
};

// Runs a command until it has ended and closed its outputs, or kills it after `timeout_ms`. If `progress` is
// given, it is called with the output so far whenever the command has written more.
Captured run_and_capture(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                         int timeout_ms, void (*progress)(const Captured&) = nullptr);

// Returns the environment of this process, as strings "NAME=value".
std::vector<std::string> own_environment();

// Returns the value of `name` in `environment`, a list of strings "NAME=value"; "" if it is missing.
std::string environment_value(const std::vector<std::string>& environment, const std::string& name);

// Sets the value of `name` in `environment`, a list of strings "NAME=value".
void set_environment(std::vector<std::string>* environment, const std::string& name,
                     const std::string& value);

// Waits for the user's command and passes SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 on to it. The
// first three are "stop signals", unless this process ignored them before the construction (nohup, background
// job). The constructor blocks all six, so that they stay pending until a member function takes them. It also
// blocks SIGPIPE and SIGXFSZ, because a failed write must not end this process.
class SignalPasser {
 public:
  SignalPasser();

  // The signal mask with which the command must be started.
  const sigset_t* original_mask() const { return &original_; }

  // Takes a pending stop signal and returns it; 0: none. Must be called just before the command is started:
  // wait_for() would not pass on a Ctrl-C that the terminal sent before the command existed.
  int take_pending_stop_signal();

  // Waits for the end of `pid`. Meanwhile calls `tick` every 200 ms and passes signals on, except those (such
  // as Ctrl-C) that the terminal has already sent to `pid` too, because both are in one process group.
  ExitStatus wait_for(pid_t pid, const std::function<void()>& tick);

  // Waits up to `period_ms` for one of the six signals or SIGCHLD. Returns whether it is a stop signal.
  bool interrupted_within(int period_ms);

  // The first stop signal that wait_for() or interrupted_within() has taken; 0: none.
  int stop_signal() const { return stop_signal_; }

 private:
  // Takes a signal of `waited_`; -1: none came in `period_ms`, or the handler of another signal ran.
  int next_signal(int period_ms, siginfo_t* info);
  bool is_stop_signal(int signal) const { return sigismember(&stop_signals_, signal) == 1; }

  // In this order: the mask before the construction; the six signals and SIGCHLD; the stop signals.
  sigset_t original_, waited_, stop_signals_;
  int stop_signal_ = 0;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_PROCESS_H_
