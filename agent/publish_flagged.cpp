#include "agent/publish_flagged.h"

namespace foreshock {

void publish_flagged(const std::string& run, const FlaggedWriter& writer, Registry* registry) {
  const FlaggedCounts counts = writer.counts();
  for (size_t n = 0; n < kFlagReasons; ++n)
    registry->set(Metric::kFlaggedSlicesTotal, {run, kFlagReasonNames[n]},
                  static_cast<double>(counts.saved[n]));
  for (size_t n = 0; n < kFlaggedDrops; ++n)
    registry->set(Metric::kFlaggedSlicesDroppedTotal, {run, kFlaggedDropNames[n]},
                  static_cast<double>(counts.dropped[n]));
}

nlohmann::json flagged_json(const FlaggedWriter& writer) {
  const FlaggedCounts counts = writer.counts();
  nlohmann::json saved = nlohmann::json::object(), dropped = nlohmann::json::object();
  for (size_t n = 0; n < kFlagReasons; ++n)
    if (counts.saved[n] > 0) saved[kFlagReasonNames[n]] = counts.saved[n];
  for (size_t n = 0; n < kFlaggedDrops; ++n)
    if (counts.dropped[n] > 0) dropped[kFlaggedDropNames[n]] = counts.dropped[n];
  return {{"directory", writer.path()}, {"saved", saved}, {"dropped", dropped}, {"problem", counts.problem}};
}

}  // namespace foreshock
