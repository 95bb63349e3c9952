#include "agent/totals.h"

#include "segment/layout.h"
#include "shadow/written_out.h"

namespace foreshock {

PassTotals totals_of(const Ranks& ranks, uint32_t pass) {
  PassTotals totals;
  WeightedMean ratio;
  uint64_t slices = 0, written_out = 0;
  for (const RankStatistics* rank : ranks) {
    const PassStatistics& statistics = rank->pass[pass];
    totals.calls += rank->calls(pass);
    totals.unsampled += rank->totals.unsampled[pass];
    totals.sampled += rank->totals.sampled[pass];
    totals.judged += rank->judged[pass];
    totals.nonfinite += statistics.nonfinite;
    for (uint32_t n = 0; n < segment::kSkipReasons; ++n)
      totals.skipped[segment::kSkipReasonNames[n]] += rank->totals.skipped[pass][n];
    for (uint32_t n = 0; n < segment::kLostReasons; ++n)
      totals.lost[segment::kLostReasonNames[n]] += rank->lost[pass][n];
    totals.is_compared = totals.is_compared || mean_of(statistics.relative_error_mean).has_value();
    totals.is_damaged = totals.is_damaged || rank->is_damaged || rank->steps_damaged > 0 ||
                        rank->lost[pass][static_cast<uint32_t>(segment::Lost::kDamaged)] > 0;
    ratio.add(mean_of(statistics.fused_ratio), rank->judged[pass]);
    slices += statistics.judged;
    written_out += statistics.written_out;
  }
  totals.yardstick = yardstick_of(slices, written_out);
  totals.ratio = ratio.value();
  return totals;
}

std::string on_rank(const Ranks& ranks, const RankStatistics& rank) {
  return ranks.size() > 1 ? " on rank " + std::to_string(rank.identity.rank) : "";
}

}  // namespace foreshock
