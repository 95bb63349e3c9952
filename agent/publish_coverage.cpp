#include "agent/publish_coverage.h"

#include <cmath>
#include <optional>
#include <string>

#include "agent/json_values.h"
#include "segment/layout.h"

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

bool counts_kernels(const segment::Coverage& coverage) { return coverage.kernel_count_state != 0; }

// Calls seen over kernels launched, in the same steps. More calls than kernels: some have names that are not
// known here, and nothing is claimed.
std::optional<double> ratio_of_kernels(const segment::Coverage& coverage) {
  const auto seen = static_cast<double>(sum(coverage.kernel_count_calls));
  const double ran =
      static_cast<double>(sum(coverage.kernels)) + static_cast<double>(coverage.kernel_count_in_graphs);
  if (coverage.kernel_count_steps == 0 || ran == 0 || seen > ran) return std::nullopt;
  return seen / ran;
}

// The hooks saw what they counted, less what was only recorded; beside it ran what was launched. With graphs
// of unknown content nothing is claimed.
CoverageRatio ratio_of(const RankStatistics& rank) {
  const segment::Coverage& coverage = rank.coverage;
  if (const auto ratio = ratio_of_kernels(coverage)) return {ratio, "kernels"};
  if (coverage.graph_launches == 0 || coverage.unknown_launches > 0) return {};
  const auto calls = static_cast<double>(rank.calls(0) + rank.calls(1));
  const double seen = calls - static_cast<double>(sum(coverage.recorded_calls));
  const double ran = seen + static_cast<double>(sum(coverage.launched_calls));
  if (!(seen >= 0 && ran > 0)) return {};
  return {seen / ran, "graphs"};
}

void publish_graphs(const RankStatistics& rank, const std::string& number, Registry* registry) {
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

void publish_kernels(const RankStatistics& rank, const std::string& number, Registry* registry) {
  const segment::Coverage& coverage = rank.coverage;
  registry->clear_metric(Metric::kKernelCountState, rank.run, number);
  registry->set(Metric::kKernelCountState,
                {rank.run, number, segment::kernel_count_state_name(coverage.kernel_count_state)}, 1);
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass)
    registry->set(Metric::kAttentionKernelsTotal, {rank.run, number, segment::kPassNames[pass]},
                  static_cast<double>(coverage.kernels[pass]));
}

json by_pass(const uint64_t (&of)[segment::kPasses]) { return {{"forward", of[0]}, {"backward", of[1]}}; }

}  // namespace

void publish_coverage(const RankStatistics& rank, Registry* registry) {
  const std::string number = std::to_string(rank.identity.rank);
  const CoverageRatio known = ratio_of(rank);
  registry->clear_metric(Metric::kAttentionCoverageRatio, rank.run, number);
  registry->set(Metric::kAttentionCoverageRatio, {rank.run, number, known.source},
                known.ratio.value_or(std::nan("")));
  if (has_graphs(rank.coverage)) publish_graphs(rank, number, registry);
  if (counts_kernels(rank.coverage)) publish_kernels(rank, number, registry);
}

json coverage_json(const RankStatistics& rank) {
  const CoverageRatio known = ratio_of(rank);
  json told = {{"ratio", number_or_null(known.ratio)}, {"source", known.source}};
  const segment::Coverage& coverage = rank.coverage;
  if (has_graphs(coverage))
    told["graphs"] = {{"launches", coverage.graph_launches},
                      {"unknown_launches", coverage.unknown_launches},
                      {"recorded", by_pass(coverage.recorded_calls)},
                      {"calls", by_pass(coverage.launched_calls)}};
  if (counts_kernels(coverage))
    told["kernels"] = {{"state", segment::kernel_count_state_name(coverage.kernel_count_state)},
                       {"holder", segment::text_of(coverage.kernel_count_holder)},
                       {"steps", coverage.kernel_count_steps},
                       {"launched", by_pass(coverage.kernels)},
                       {"calls", by_pass(coverage.kernel_count_calls)},
                       {"in_graphs", coverage.kernel_count_in_graphs}};
  return told;
}

}  // namespace foreshock
