// What the agent of a run tells of it: /api/v1/state.
#ifndef FORESHOCK_CLI_AGENT_STATE_H_
#define FORESHOCK_CLI_AGENT_STATE_H_

#include <string>

#include "cli/agent_keeper.h"

namespace foreshock::cli {

// Asks for the state of the run that `agent` was told of, showing the token in `token_file` ("" for none).
// False: *error is one line.
bool read_agent_state(const AgentAddress& agent, const std::string& token_file, std::string* json,
                      std::string* error);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_AGENT_STATE_H_
