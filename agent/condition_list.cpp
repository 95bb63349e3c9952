#include "agent/condition_list.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "agent/text.h"
#include "exporters/metrics.h"

namespace foreshock {

std::vector<Condition> conditions_of(const RunConditions& conditions) {
  std::vector<Condition> merged;
  for (const Condition& each : conditions.found()) {
    const auto same = std::find_if(merged.begin(), merged.end(), [&](const Condition& other) {
      return other.id == each.id && (other.place.empty() == each.place.empty());
    });
    if (same == merged.end()) {
      merged.push_back(each);
      continue;
    }
    same->rank = -1;
    same->last_step = std::max(same->last_step, each.last_step);
    same->is_over = same->is_over && each.is_over;
  }
  return merged;
}

std::vector<Condition> conditions_of(const Ranks& ranks) {
  // All ranks of a run point to the conditions of the run.
  for (const RankStatistics* rank : ranks)
    if (rank->conditions != nullptr) return conditions_of(*rank->conditions);
  return {};
}

std::vector<Condition> looks_of(const Ranks& ranks) {
  std::vector<Condition> looks = conditions_of(ranks);
  std::erase_if(looks, is_fault);
  return looks;
}

std::string text_of(const Condition& condition) {
  return printable(sentence_of(condition)) + ". Do: " + info_of(condition.id).action + ".";
}

std::string headline_with_looks(const std::string& headline, bool is_healthy, size_t looks) {
  if (!is_healthy || looks == 0) return headline;
  return headline + "; " + std::to_string(looks) + (looks == 1 ? " thing" : " things") + " worth a look";
}

void publish_conditions(const std::string& run, const std::vector<Condition>& conditions,
                        Registry* registry) {
  // A run keeps its conditions until it has ended. Clearing each time would let a layer's series in between.
  if (conditions.empty()) registry->clear_metric(Metric::kCondition, run);
  // A condition of a rank and one of the whole run may have the same name: the series holds if either does.
  for (const bool holds : {false, true})
    for (const Condition& each : conditions)
      if (each.is_over != holds)
        registry->set(Metric::kCondition, {run, info_of(each.id).name, name_of(info_of(each.id).kind)},
                      holds);
}

nlohmann::json conditions_json(const std::vector<Condition>& conditions) {
  const auto number = [](double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(nullptr); };
  nlohmann::json all = nlohmann::json::array();
  for (const Condition& each : conditions) {
    const ConditionInfo& info = info_of(each.id);
    all.push_back({{"condition", info.name},
                   {"kind", name_of(info.kind)},
                   {"rank", each.rank >= 0 ? nlohmann::json(each.rank) : nlohmann::json(nullptr)},
                   {"since_step", each.since_step},
                   {"last_step", each.last_step},
                   {"holds", !each.is_over},
                   {"episodes", each.episodes},
                   {"value", number(each.value)},
                   {"usual", number(each.usual)},
                   {"text", sentence_of(each)},
                   {"action", info.action}});
  }
  return all;
}

}  // namespace foreshock
