// What a judged slice and an ended step change in what is known of a rank.
#ifndef FORESHOCK_AGENT_OBSERVE_H_
#define FORESHOCK_AGENT_OBSERVE_H_

#include <optional>

#include "agent/rank.h"
#include "agent/slot_slice.h"
#include "shadow/deviation.h"

namespace foreshock {

void observe_slice(const segment::Slot& slot, const LayerOfCall& layer, const SliceDeviation& deviation,
                   RankStatistics* rank);

// The loss event that this step declares, if any.
std::optional<LossEvent> observe_step(const segment::StepRecord& step, RankStatistics* rank);

// Share of rows with a second score next to the largest.
std::optional<double> near_tie_ratio(const SliceDeviation& deviation);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_OBSERVE_H_
