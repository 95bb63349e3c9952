// What became of the flagged slices of a run, as metrics and for summaries.
#ifndef FORESHOCK_AGENT_PUBLISH_FLAGGED_H_
#define FORESHOCK_AGENT_PUBLISH_FLAGGED_H_

#include <nlohmann/json.hpp>
#include <string>

#include "agent/flagged_writer.h"
#include "exporters/registry.h"

namespace foreshock {

void publish_flagged(const std::string& run, const FlaggedWriter& writer, Registry* registry);

// {"directory", "saved": {reason: n}, "dropped": {why: n}, "problem"}, as in docs/summary.md.
nlohmann::json flagged_json(const FlaggedWriter& writer);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_PUBLISH_FLAGGED_H_
