// A story as text: names of detectors, signals and facts, sentences made of them, and the three documents:
// JSON (what `foreshock report --json` prints; docs/report.md has its keys), Markdown, and one page that
// needs nothing from outside, to be attached to a post-mortem, read and printed.
#ifndef FORESHOCK_CLI_REPORT_TEXT_H_
#define FORESHOCK_CLI_REPORT_TEXT_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/detection.h"
#include "cli/report_model.h"
#include "detect/thresholds.h"
#include "detect/watch.h"

namespace foreshock::cli {

// Whole sentences, for a reader who knows trainings and not foreshock. None is empty.
struct ReportText {
  const char* plain;  // what was seen, in a few words, without an end: "gradient norm grew steadily"
  const char* consistent_with;
  const char* not_excluded;
  const char* to_try;
};

// What the circumstances of an event say.
enum class Clue : int {
  kNothingBefore,    // no detector spoke before it
  kLearningRate,     // it had changed
  kNonfinite,        // values that are no numbers before it
  kReplicasDiffer,   // weights that should be equal are not
  kResumed,          // the training had just gone back to a checkpoint
  kSkippedSteps,     // a gradient scaler had left steps out
  kOneRank,          // other ranks had no event
  kCameAgain,        // the same steps run again gave it again
  kDidNotComeAgain,  // the same steps run again did not
  kMonitorGap,       // steps before it were not seen
  kCount
};
inline constexpr int kClues = static_cast<int>(Clue::kCount);

const ReportText& text_of(DetectorId detector);
// Texts for kLossSpike, kDivergence and kLossRise; any other kind gets the texts of a spike.
const ReportText& text_of(WatchEventKind kind);
const ReportText& text_of(Clue clue);

// Why a detector may have had no value in a whole run.
const char* why_without_values(DetectorId detector);

// Nothing: there is no detector of that name.
std::optional<DetectorId> detector_of(std::string_view name);

// How a report says things: sentences about a run and its events.

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

// What the errors of attention were in the whole run.
std::string attention_text(const std::vector<AttentionFault>& faults, const AttentionFault& largest);

// One sentence or two on the whole run.
std::string verdict_of(const Story& story, const RunCounts& counts);

// -- documents --

// One line of valid UTF-8. Curves are thinned, keeping the least and the largest value of each stretch, so
// that a page of it stays below 2 MB; what is not known or not finite is null.
std::string report_json(const Story& story);

// The files of cli/report/, embedded at build time, and their SHA-256 in hexadecimal.
extern const std::string_view kReportHtml, kReportCss, kReportJs, kReportChart;
extern const std::string_view kReportCssHash, kReportJsHash, kReportChartHash;

// The story as Markdown of at most two screens: incidents, evidence, what was not judged, and commands that
// look further. Text from the record is made printable. `records`: as they were named on the command line.
std::string report_markdown(const Story& story, const std::vector<std::string>& records);

// Stands in every page, near its beginning.
inline constexpr std::string_view kReportMark = "<meta name=\"generator\" content=\"foreshock report\">";

// `json`: of report_json(). Its text comes from a trainer: it is data in the page, and a policy in the page
// lets no script run but the page's own and nothing be loaded.
std::string report_page(const std::string& json);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_TEXT_H_
