#include "cli/say.h"

#include <unistd.h>

namespace foreshock::cli {

void say(const std::string& line) {
  const std::string text = "foreshock: " + line + "\n";
  // A closed standard error must not keep the command from running.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

int wrong_use(const std::string& line) {
  say(line);
  return kWrongUse;
}

}  // namespace foreshock::cli
