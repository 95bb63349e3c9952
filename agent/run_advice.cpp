// The part of Run that tells its ranks what the detectors make of the training.
#include <algorithm>
#include <cstdio>

#include "agent/run.h"

namespace foreshock {
namespace {

// Until the agent, at the lowest priority, has written what it read: a rank alone need not wait for others.
constexpr double kAheadSeconds = 0.25;
constexpr int64_t kMostAhead = 64;  // steps

int64_t steps_ahead(double step_seconds) {
  if (!(step_seconds > kAheadSeconds / kMostAhead)) return kMostAhead;
  return static_cast<int64_t>(kAheadSeconds / step_seconds);
}

}  // namespace

// That no rank of the node has come to when it hears of it.
int64_t Run::step_to_act_from() const {
  const int64_t soon = effective_step();
  if (ranks() < 2) return soon;
  double step_seconds = 0;
  for (const auto& followed : followed_)
    if (!followed->is_finished())
      step_seconds = std::max(step_seconds, mean_of(followed->rank.step_seconds).value_or(0) /
                                                static_cast<double>(followed->rank.stride.steps()));
  return std::min(soon, INT64_MAX - kMostAhead) + steps_ahead(step_seconds);
}

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
  advice_.from_step = step_to_act_from();
  advice_.score = signal.score;
  std::snprintf(advice_.detector, sizeof advice_.detector, "%s", signal.detector.c_str());
  std::snprintf(advice_.layer, sizeof advice_.layer, "%s", signal.layer.c_str());
  for (auto& followed : followed_)
    if (!followed->is_finished()) followed->segment().set_advice(advice_);
}

}  // namespace foreshock
