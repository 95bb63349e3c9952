#include "detect/precursors.h"

#include <algorithm>

namespace foreshock {

void Precursors::note(DetectorId detector, const std::string& place, const std::string& layer, Level level,
                      int64_t step) {
  const auto lasting = std::find_if(episodes_.begin(), episodes_.end(), [&](const Episode& each) {
    return each.end_step < 0 && each.detector == detector && each.place == place;
  });
  if (level == Level::kQuiet) {
    if (lasting != episodes_.end()) lasting->end_step = step;
    return;
  }
  Episode* episode = lasting != episodes_.end() ? &*lasting : nullptr;
  if (episode == nullptr) {
    episodes_.push_back({detector, place, layer, level, step, -1, -1});
    episode = &episodes_.back();
  }
  episode->most = std::max(episode->most, level);
  if (level == Level::kWarn && episode->warn_step < 0) episode->warn_step = step;
  if (episodes_.size() <= kMost) return;
  const auto over = std::find_if(episodes_.begin(), episodes_.end(),
                                 [](const Episode& each) { return each.end_step >= 0; });
  episodes_.erase(over != episodes_.end() ? over : episodes_.begin());
}

std::vector<Episode> Precursors::before(int64_t onset) const {
  std::vector<Episode> found;
  for (const Episode& each : episodes_) {
    // Steps may be anything; no difference of them is taken that could overflow.
    const bool is_recent = each.end_step < 0 || each.end_step >= onset ||
                           static_cast<uint64_t>(onset) - static_cast<uint64_t>(each.end_step) <= kHorizon;
    if (each.since_step < onset && is_recent) found.push_back(each);
  }
  std::stable_sort(found.begin(), found.end(), [](const Episode& a, const Episode& b) {
    return a.most != b.most ? a.most > b.most : a.since_step < b.since_step;
  });
  if (found.size() > kMostNamed) found.resize(kMostNamed);
  return found;
}

}  // namespace foreshock
