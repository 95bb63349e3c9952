// The circumstances of the loss events of `foreshock report`: what else changed at that time, by topic.
#ifndef FORESHOCK_CLI_REPORT_FACTS_H_
#define FORESHOCK_CLI_REPORT_FACTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/report_model.h"
#include "cli/report_text.h"

namespace foreshock::cli {

// An event of the record that names a fault, unlike loss events and changes of a detector's level: nonfinite,
// nonfinite_gradient, nonfinite_gradient_norm or weight_mismatch.
struct FaultEvent {
  std::string name, layer;     // one of these names; layer "": unknown
  int64_t rank = 0, step = 0;  // rank -1: weights that differ between nodes, which have no single rank
  size_t attempt = 0;          // index in Trail::attempts() of the rank; of the lowest rank, if `rank` is -1
};

// Whether an event of the record is a FaultEvent.
bool is_fault_event(std::string_view event);

// The data of a run from which the circumstances of its loss events are derived.
struct RunSeen {
  std::map<int64_t, Trail> trails;     // the newest steps, and the attempts so far, by rank
  std::map<int64_t, Signals> signals;  // the input values of the detectors, by rank
  std::vector<FaultEvent> fault_events;
  size_t records = 1;
  uint64_t tensors = 0;                              // snapshots of weight tensors
  uint64_t replicas_compared = 0;                    // those whose tensor has replicas on other ranks
  uint64_t attention_calls = 0, slices[2] = {0, 0};  // slices: forward, backward
};

// Returns the circumstances of a loss event: one fact per topic, always the same topics in the same order.
// Appends to `*clues` the circumstances for which explain() has a text. `events`: all loss events of the run.
std::vector<ReportFact> facts_of(const ReportEvent& event, const std::vector<ReportEvent>& events,
                                 const RunSeen& run, std::vector<Clue>* clues);

// Fills in `consistent_with`, `not_excluded` and `to_try` of the event, with texts for its clues, its signs
// and its kind. No sentence is repeated.
void explain(const std::vector<Clue>& clues, ReportEvent* event);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_FACTS_H_
