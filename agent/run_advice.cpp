// The part of Run that tells its ranks what the detectors make of the training.
#include <cstdio>

#include "agent/run.h"

namespace foreshock {

// Written only when it has changed: of a level that lasts, the trainer itself counts the age.
void Run::advise() {
  std::set<int64_t> ranks;
  for (const auto& followed : followed_)
    if (!followed->is_finished()) ranks.insert(followed->rank.identity.rank);
  const Signal signal = pipeline_->adviser().loudest(ranks);
  if (signal == told_) return;
  told_ = signal;
  advice_ = {};
  advice_.level = static_cast<uint32_t>(signal.level);
  advice_.rank = static_cast<int32_t>(signal.rank);
  advice_.since_step = signal.since_step;
  advice_.from_step = effective_step();
  advice_.score = signal.score;
  std::snprintf(advice_.detector, sizeof advice_.detector, "%s", signal.detector.c_str());
  std::snprintf(advice_.layer, sizeof advice_.layer, "%s", signal.layer.c_str());
  for (auto& followed : followed_)
    if (!followed->is_finished()) followed->segment().set_advice(advice_);
}

}  // namespace foreshock
