#include "cli/say.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace foreshock::cli {

std::string printable(std::string text) {
  const auto is_control = [](unsigned char c) { return c < ' ' || c == 0x7f; };
  std::replace_if(text.begin(), text.end(), is_control, '?');
  return text;
}

void say(const std::string& line) {
  const std::string text = printable("foreshock: " + line) + '\n';
  // A standard error that is closed, or a pipe that nobody reads, must not keep the command from running.
  sigset_t pipe, pending, before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigpending(&pending);
  sigprocmask(SIG_BLOCK, &pipe, &before);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  const timespec at_once = {0, 0};
  if (sigismember(&pending, SIGPIPE) == 0) sigtimedwait(&pipe, nullptr, &at_once);
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

int wrong_use(const std::string& line) {
  say(line);
  return kWrongUse;
}

}  // namespace foreshock::cli
