// The circumstances of a loss event, from what a record tells of its run: no causes, only what was and what
// was not seen.
#ifndef FORESHOCK_CLI_REPORT_FACTS_H_
#define FORESHOCK_CLI_REPORT_FACTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/report_story.h"
#include "cli/report_texts.h"

namespace foreshock::cli {

// Something that the agent told of beside the detectors' events: nonfinite, nonfinite_gradient,
// nonfinite_gradient_norm, weight_mismatch.
struct Notable {
  std::string what, layer;
  int64_t rank = 0, step = 0;  // rank -1: of no single one, as found between nodes
  size_t attempt = 0;
};

// What is known of the run as a whole.
struct RunSeen {
  std::map<int64_t, Trail> trails;     // by rank
  std::map<int64_t, Signals> signals;  // by rank
  std::vector<Notable> notables;
  size_t records = 1;
  uint64_t tensors = 0;                              // snapshots of weights
  uint64_t replicas_compared = 0;                    // those that several ranks hold alike
  uint64_t attention_calls = 0, slices[2] = {0, 0};  // forward, backward
};

// The facts of `event`, always the same names in the same order; the clues that they give are appended.
// `events`: all of the run.
std::vector<StoryFact> facts_of(const StoryEvent& event, const std::vector<StoryEvent>& events,
                                const RunSeen& run, std::vector<Clue>* clues);

// Fills in what the event is consistent with, what is not excluded and what to try: of its kind, of the
// detectors before it, of its clues. No sentence twice.
void explain(const std::vector<Clue>& clues, StoryEvent* event);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_FACTS_H_
