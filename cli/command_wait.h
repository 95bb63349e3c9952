// Waiting for the user's command while passing on signals.
#ifndef FORESHOCK_CLI_COMMAND_WAIT_H_
#define FORESHOCK_CLI_COMMAND_WAIT_H_

#include <signal.h>
#include <sys/types.h>

#include <functional>

#include "cli/process.h"

namespace foreshock::cli {

// Blocks the signals that are passed on (and SIGPIPE, SIGXFSZ) from construction on; they stay pending until
// wait_for.
class SignalPasser {
 public:
  SignalPasser();

  // What the command must start with.
  const sigset_t* original_mask() const { return &original_; }

  // The signal that has asked to stop before there is a command to pass it to, or 0. A terminal's signal is
  // never passed on, so the command would not hear of it.
  int stop_before_start();

  // Waits for `pid`, passing signals on and calling `tick` every 200 ms.
  ExitStatus wait_for(pid_t pid, const std::function<void()>& tick);

  // Waits up to `period_ms`; true when a signal that asks to stop has come meanwhile.
  bool interrupted_within(int period_ms);

  // Whether SIGTERM, SIGINT or SIGHUP has come since the construction. One that was ignored before us (nohup,
  // a job in the background) asks nobody.
  bool was_asked_to_stop() const { return asked_to_stop_; }

 private:
  int next_signal(int period_ms, siginfo_t* info);
  bool asks_to_stop(int signal) const { return sigismember(&asking_, signal) == 1; }

  sigset_t original_, waited_, asking_;
  bool asked_to_stop_ = false;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_COMMAND_WAIT_H_
