// A run with what the agent keeps of it for others: who owns it, when it was last needed, its page.
#ifndef FORESHOCK_AGENT_SERVED_RUN_H_
#define FORESHOCK_AGENT_SERVED_RUN_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "agent/run.h"

namespace foreshock {

struct ServedRun {
  ServedRun(std::unique_ptr<Run> followed, Run::Clock::time_point now);

  double new_rank_seconds() const { return std::max(0.0, run->rank_seconds() - rank_seconds); }

  std::unique_ptr<Run> run;
  std::string owner;  // user name, else the number
  Run::Clock::time_point last_needed;
  double cpu_seconds = 0;                       // of the agent, charged to this run
  double rank_seconds = 0;                      // when that was last charged
  std::shared_ptr<const std::string> document;  // body of /api/v1/state; null: not made yet
  Run::Clock::time_point next_document = {};
};

// Makes the documents that are due, those of `agent` merged in. One that takes long is made less often, and
// no more is begun once 20 ms have gone: a run of a thousand layers delays no other one's samples.
void refresh_documents(const nlohmann::json& agent, std::vector<ServedRun>* runs);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_SERVED_RUN_H_
