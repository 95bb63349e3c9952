// Writes which share of the attention calls the hooks of a rank have seen, as metrics and as JSON.
#include <cmath>
#include <optional>

#include "agent/publish.h"
#include "segment/layout.h"

namespace foreshock {

using nlohmann::json;

namespace {

// The share of attention calls that the hooks have seen, and how the calls that ran were counted.
struct CoverageRatio {
  std::optional<double> ratio;  // absent: unknown
  const char* source = "none";  // "kernels", "graphs", or "none" if unknown
};

uint64_t sum(const uint64_t (&counts)[segment::kPasses]) { return counts[0] + counts[1]; }

bool has_graphs(const segment::Coverage& coverage) {
  return coverage.graph_launches + coverage.unknown_launches + sum(coverage.recorded_calls) > 0;
}

// State 0: the user has not requested a count of the launched kernels (--count-kernels).
bool counts_kernels(const segment::Coverage& coverage) { return coverage.kernel_count_state != 0; }

// Returns the ratio of the calls that the hooks saw to the calls that ran in the same steps: attention
// kernels launched, and calls in CUDA graphs. Empty if more calls were seen than ran: some kernels then have
// names that foreshock does not recognize.
std::optional<double> ratio_of_kernels(const segment::Coverage& coverage) {
  const auto seen = static_cast<double>(sum(coverage.kernel_count_calls));
  const double ran =
      static_cast<double>(sum(coverage.kernels)) + static_cast<double>(coverage.kernel_count_in_graphs);
  if (coverage.kernel_count_steps == 0 || ran == 0 || seen > ran) return std::nullopt;
  return seen / ran;
}

// Returns the number of calls that the hooks saw, divided by the number of calls that ran. Without kernel
// counts, the ratio is known only if CUDA graphs were launched and the content of all of them is known. seen:
// calls that the hooks counted, without those that were only recorded into graphs. ran: the seen calls and
// the calls that launched graphs made, which no hook sees.
CoverageRatio ratio_of(const RankStatistics& rank) {
  const segment::Coverage& coverage = rank.coverage;
  if (const auto ratio = ratio_of_kernels(coverage)) return {ratio, "kernels"};
  if (coverage.graph_launches == 0 || coverage.unknown_launches > 0) return {};
  const auto calls = static_cast<double>(rank.calls(0) + rank.calls(1));
  const double seen = calls - static_cast<double>(sum(coverage.recorded_calls));
  const double ran = seen + static_cast<double>(sum(coverage.launched_calls));
  if (!(seen >= 0 && ran > 0)) return {};  // no call ran, or the counts contradict each other
  return {seen / ran, "graphs"};
}

void publish_graphs(const segment::Coverage& coverage, RankWriter& series) {
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
    series.set(Metric::kAttentionRecordedTotal, coverage.recorded_calls[pass], segment::kPassNames[pass]);
    series.set(Metric::kAttentionGraphCallsTotal, coverage.launched_calls[pass], segment::kPassNames[pass]);
  }
  series.set(Metric::kGraphLaunchesTotal, coverage.graph_launches, "known");
  series.set(Metric::kGraphLaunchesTotal, coverage.unknown_launches, "unknown");
}

void publish_kernels(const segment::Coverage& coverage, RankWriter& series) {
  series.clear(Metric::kKernelCountState);
  series.set(Metric::kKernelCountState, 1.0, segment::kernel_count_state_name(coverage.kernel_count_state));
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass)
    series.set(Metric::kAttentionKernelsTotal, coverage.kernels[pass], segment::kPassNames[pass]);
}

json by_pass(const uint64_t (&n)[segment::kPasses]) { return {{"forward", n[0]}, {"backward", n[1]}}; }

}  // namespace

void publish_coverage(const RankStatistics& rank, Registry* registry) {
  RankWriter series(rank, registry);
  const CoverageRatio coverage_ratio = ratio_of(rank);
  series.clear(Metric::kAttentionCoverageRatio);
  // An unknown ratio is exported as NaN, with the source "none" (docs/metrics.md).
  series.set(Metric::kAttentionCoverageRatio, coverage_ratio.ratio.value_or(std::nan("")),
             coverage_ratio.source);
  if (has_graphs(rank.coverage)) publish_graphs(rank.coverage, series);
  if (counts_kernels(rank.coverage)) publish_kernels(rank.coverage, series);
}

json coverage_json(const RankStatistics& rank) {
  const CoverageRatio coverage_ratio = ratio_of(rank);
  json result = {{"ratio", number_or_null(coverage_ratio.ratio)}, {"source", coverage_ratio.source}};
  const segment::Coverage& coverage = rank.coverage;
  if (has_graphs(coverage))
    result["graphs"] = {{"launches", coverage.graph_launches},
                        {"unknown_launches", coverage.unknown_launches},
                        {"recorded", by_pass(coverage.recorded_calls)},
                        {"calls", by_pass(coverage.launched_calls)}};
  if (counts_kernels(coverage))
    result["kernels"] = {{"state", segment::kernel_count_state_name(coverage.kernel_count_state)},
                         {"holder", segment::text_of(coverage.kernel_count_holder)},
                         {"steps", coverage.kernel_count_steps},
                         {"launched", by_pass(coverage.kernels)},
                         {"calls", by_pass(coverage.kernel_count_calls)},
                         {"in_graphs", coverage.kernel_count_in_graphs}};
  return result;
}

}  // namespace foreshock
