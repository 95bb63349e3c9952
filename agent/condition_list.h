// Lists the conditions of a run (detect/conditions.h) for its findings, its summary and its JSON.
#ifndef FORESHOCK_AGENT_CONDITION_LIST_H_
#define FORESHOCK_AGENT_CONDITION_LIST_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "agent/totals.h"
#include "detect/conditions.h"

namespace foreshock {

class Registry;  // exporters/metrics.h

// Returns the conditions of a run, faults first. A condition that several ranks share is listed once, without
// a rank.
std::vector<Condition> conditions_of(const RunConditions& conditions);
std::vector<Condition> conditions_of(const Ranks& ranks);

// The conditions that may be intended (ConditionKind::kLook).
std::vector<Condition> looks_of(const Ranks& ranks);

// Returns "<sentence>. Do: <action>."
std::string text_of(const Condition& condition);

// Returns `headline`; of a healthy run with looks "healthy; 2 things worth a look".
std::string headline_with_looks(const std::string& headline, bool is_healthy, size_t looks);

// Sets the metric of the conditions of a run; without conditions removes its series.
void publish_conditions(const std::string& run, const std::vector<Condition>& conditions, Registry* registry);

nlohmann::json conditions_json(const std::vector<Condition>& conditions);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_CONDITION_LIST_H_
