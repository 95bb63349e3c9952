#include "agent/publish_coverage.h"

#include <cmath>
#include <optional>
#include <string>

#include "agent/json_values.h"
#include "segment/names.h"

namespace foreshock {
namespace {

using nlohmann::json;

struct CoverageRatio {
  std::optional<double> ratio;
  const char* source = "none";
};

uint64_t sum(const uint64_t (&of)[segment::kPasses]) { return of[0] + of[1]; }

bool has_graphs(const segment::Coverage& coverage) {
  return coverage.graph_launches + coverage.unknown_launches + sum(coverage.recorded_calls) > 0;
}

// The hooks saw what they counted, less what was only recorded; beside it ran what was launched. With graphs
// of unknown content nothing is claimed.
CoverageRatio ratio_of(const RankStatistics& rank) {
  const segment::Coverage& coverage = rank.coverage;
  if (coverage.graph_launches == 0 || coverage.unknown_launches > 0) return {};
  const auto calls = static_cast<double>(rank.calls(0) + rank.calls(1));
  const double seen = calls - static_cast<double>(sum(coverage.recorded_calls));
  const double ran = seen + static_cast<double>(sum(coverage.launched_calls));
  if (!(seen >= 0 && ran > 0)) return {};
  return {seen / ran, "graphs"};
}

}  // namespace

void publish_coverage(const RankStatistics& rank, Registry* registry) {
  const std::string number = std::to_string(rank.identity.rank);
  const CoverageRatio known = ratio_of(rank);
  registry->clear_metric(Metric::kAttentionCoverageRatio, rank.run, number);
  registry->set(Metric::kAttentionCoverageRatio, {rank.run, number, known.source},
                known.ratio.value_or(std::nan("")));
  if (!has_graphs(rank.coverage)) return;
  const segment::Coverage& coverage = rank.coverage;
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    registry->set(Metric::kAttentionRecordedTotal, {rank.run, number, segment::kPassNames[pass]},
                  static_cast<double>(coverage.recorded_calls[pass]));
    registry->set(Metric::kAttentionGraphCallsTotal, {rank.run, number, segment::kPassNames[pass]},
                  static_cast<double>(coverage.launched_calls[pass]));
  }
  registry->set(Metric::kGraphLaunchesTotal, {rank.run, number, "known"},
                static_cast<double>(coverage.graph_launches));
  registry->set(Metric::kGraphLaunchesTotal, {rank.run, number, "unknown"},
                static_cast<double>(coverage.unknown_launches));
}

json coverage_json(const RankStatistics& rank) {
  const CoverageRatio known = ratio_of(rank);
  json told = {{"ratio", number_or_null(known.ratio)}, {"source", known.source}};
  const segment::Coverage& coverage = rank.coverage;
  if (has_graphs(coverage))
    told["graphs"] = {
        {"launches", coverage.graph_launches},
        {"unknown_launches", coverage.unknown_launches},
        {"recorded", {{"forward", coverage.recorded_calls[0]}, {"backward", coverage.recorded_calls[1]}}},
        {"calls", {{"forward", coverage.launched_calls[0]}, {"backward", coverage.launched_calls[1]}}}};
  return told;
}

}  // namespace foreshock
