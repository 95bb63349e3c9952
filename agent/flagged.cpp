#include "agent/flagged.h"

#include <bit>

namespace foreshock {

void FlaggedSlices::consider(const segment::Slot& slot, const JudgedSlice& judged, const LayerOfCall& layer,
                             const RankStatistics& rank, const std::string& segment) {
  const std::string key =
      std::to_string(rank.identity.rank) + "\n" + std::to_string(slot.pass) + "\n" + layer.label;
  const std::optional<FlagReason> reason = flag_reason(judged, rank);
  const auto found = places_.find(key);
  if (!reason) {
    if (found == places_.end() || found->second.has_control || !is_fit_as_control(judged.deviation)) return;
    found->second.has_control = true;
    return writer_.offer(flagged_slice(FlagReason::kControl, slot, judged, layer, rank, segment));
  }
  if (found == places_.end() && places_.size() >= kMostPlaces) return writer_.drop(FlaggedDrop::kAlike);
  const uint64_t count = ++places_[key].seen[static_cast<size_t>(*reason)];
  if (count > kFirst && !std::has_single_bit(count)) return writer_.drop(FlaggedDrop::kAlike);
  writer_.offer(flagged_slice(*reason, slot, judged, layer, rank, segment));
}

}  // namespace foreshock
