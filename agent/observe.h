// What a judged slice and an ended step change in what is known of a rank.
#ifndef FORESHOCK_AGENT_OBSERVE_H_
#define FORESHOCK_AGENT_OBSERVE_H_

#include <optional>

#include "agent/rank.h"
#include "agent/slot_slice.h"
#include "agent/weights.h"
#include "exporters/record_line.h"
#include "shadow/deviation.h"
#include "shadow/layer_spectra.h"

namespace foreshock {

void observe_slice(const segment::Slot& slot, const LayerOfCall& layer, const SliceDeviation& deviation,
                   RankStatistics* rank);

// An agent before this one has taken the steps up to `last`, and `watch`, if there is one, knows what they
// brought.
void take_up(const segment::StepRecord& last, const RankWatch* watch, RankStatistics* rank);

void observe_step(const segment::StepRecord& step, RankStatistics* rank);

// One that the detectors have found.
void observe_event(const EventLine& line, RankStatistics* rank);

// A snapshot of a tensor that this rank has completed: what the page draws.
void draw_weights(const TensorSnapshot& snapshot, RankStatistics* rank);

// Of heads that this rank has shown.
void draw_spectrum(const std::string& layer, const LayerSpectrum& spectrum, RankStatistics* rank);

// Once an interval.
void draw_model(const Weights& weights, RankStatistics* rank);

// Share of rows with a second score next to the largest.
std::optional<double> near_tie_ratio(const SliceDeviation& deviation);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_OBSERVE_H_
