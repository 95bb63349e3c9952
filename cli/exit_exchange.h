// What a launcher and its agent tell each other when the command has ended: exit.<launcher>.json one way,
// summary.<launcher>.json the other (segment/SEGMENT.md, "Who is alive").
#ifndef FORESHOCK_CLI_EXIT_EXCHANGE_H_
#define FORESHOCK_CLI_EXIT_EXCHANGE_H_

#include <string>

#include "cli/agent_keeper.h"
#include "cli/command_wait.h"

namespace foreshock::cli {

class ExitExchange {
 public:
  // Removes what an earlier launcher of our number has left, and takes the space and inodes of both files
  // now: a training may end because, or while, the memory is full. "" or a reason.
  std::string reserve(const std::string& directory);

  // Tells the agent how the command ended.
  void tell(const ExitStatus& status, bool was_asked_to_stop) const;

  struct Answer {
    std::string summary;  // of our ranks, JSON text
    std::string problem;  // why there is none
  };
  // Waits until the agent has answered, cannot, or a signal asks to stop; half a minute at most.
  Answer wait(SignalPasser* signals, AgentKeeper* keeper) const;

 private:
  std::string directory_, exit_, spare_, summary_;
};

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_EXIT_EXCHANGE_H_
