// How a report says things: sentences about a run and its events.
#ifndef FORESHOCK_CLI_REPORT_WORDS_H_
#define FORESHOCK_CLI_REPORT_WORDS_H_

#include <string>

#include "agent/measured.h"
#include "cli/report_story.h"

namespace foreshock::cli {

// "1 step", "12 345 steps".
std::string steps_text(int64_t number);

// "Loss spike at step 2 310".
std::string title_of(const StoryEvent& event);

// What the loss did: from where, to where, and whether it came back.
std::string course_of(const StoryEvent& event);

// By what was measured of it; what is not is experimental.
bool is_proven(DetectorId detector);

// How far a detector can be believed, by what was measured of it; null: nothing was.
std::string how_sure(const Measured* measured);

// "the gradient norm grew steadily, 9 steps before", with the layer if there is one; "nothing" without a
// sign.
std::string first_sign_of(const StoryEvent& event);

// What was seen of a run. Warnings are counted on all ranks.
struct RunCounts {
  uint64_t steps = 0, losses = 0, warnings = 0;
};

// One sentence or two on the whole run.
std::string verdict_of(const Story& story, const RunCounts& counts);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_WORDS_H_
