// The environment of a monitored command.
#ifndef FORESHOCK_CLI_COMMAND_ENVIRONMENT_H_
#define FORESHOCK_CLI_COMMAND_ENVIRONMENT_H_

#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/torch.h"

namespace foreshock::cli {

struct Monitored {
  std::string base, run_id, adapters;
};

// Ours, with LD_PRELOAD appended to (what the user preloads stays first), PYTHONPATH prepended to, and the
// FORESHOCK_ variables of the trainer set.
std::vector<std::string> command_environment(const Installation& installation, const Arguments& arguments,
                                             const Monitored& monitored);

// "" when a program started in `environment` loads our library, else why not. Runs /bin/true.
std::string preload_problem(const std::vector<std::string>& environment, const std::string& library);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_COMMAND_ENVIRONMENT_H_
