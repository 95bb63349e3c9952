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

// How far a detector can be believed, by what was measured of it; null: nothing was.
std::string how_sure(const Measured* measured);

// "gradient norm grew steadily, 9 steps before" of the first sign; "nothing" without any.
std::string first_sign_of(const StoryEvent& event);

// One sentence on the whole run. `loss_events`, `warnings`: as counted on all ranks.
std::string verdict_of(const Story& story, uint64_t steps, uint64_t loss_events, uint64_t warnings);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_WORDS_H_
