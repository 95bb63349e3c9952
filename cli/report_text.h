// Texts of a report: names of detectors, sentences about events, and the three documents: JSON (`foreshock
// report --json`; docs/report.md has its keys), Markdown, and one HTML page without outside resources, which
// can be attached to a post-mortem.
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

// Texts for a reader who knows trainings but not foreshock. Whole sentences except for `plain`; none is
// empty.
struct ReportText {
  const char* plain;  // what was seen, in a few words without a full stop: "gradient norm grew steadily"
  const char* consistent_with;
  const char* not_excluded;
  const char* to_try;
};

// Circumstances of an event for which there is an explaining text.
enum class Clue : int {
  kNothingBefore,    // no detector left level quiet before the event
  kLearningRate,     // the learning rate had changed
  kNonfinite,        // NaN or infinite values before the event
  kReplicasDiffer,   // weights that should be equal are not
  kResumed,          // the training had just gone back to a checkpoint
  kSkippedSteps,     // the gradient scaler had skipped steps
  kOneRank,          // other ranks had no event
  kCameAgain,        // the event came again when the same steps were run again
  kDidNotComeAgain,  // the event did not come again when the same steps were run again
  kMonitorGap,       // the monitor did not see all steps before the event
  kCount
};
inline constexpr int kClues = static_cast<int>(Clue::kCount);

const ReportText& text_of(DetectorId detector);
// Texts for kLossSpike, kDivergence and kLossRise; any other kind gets the texts of a spike.
const ReportText& text_of(WatchEventKind kind);
const ReportText& text_of(Clue clue);

// Why a detector may have had no value in a whole run.
const char* why_without_values(DetectorId detector);

// Returns nullopt if there is no detector of that name.
std::optional<DetectorId> detector_of(std::string_view name);

// Sentences about a run and its events.

// "1 step", "12 345 steps".
std::string steps_text(int64_t number);

// "Loss spike at step 2 310".
std::string title_of(const StoryEvent& event);

// The course of the loss: the values before, the peak, and whether it came back.
std::string course_of(const StoryEvent& event);

// Whether the benchmark has shown that the detector is reliable; the others are called experimental.
bool is_proven(DetectorId detector);

// A sentence on how reliable a detector was in the benchmark. null: the benchmark has no figures for it.
std::string how_sure(const Measured* measured);

// "the gradient norm grew steadily, 9 steps before", with the layer if there is one; "nothing" without a
// sign.
std::string first_sign_of(const StoryEvent& event);

// Steps: of the rank that has most of them. Losses and warnings: of all ranks together.
struct RunCounts {
  uint64_t steps = 0, losses = 0, warnings = 0;
};

// The attention errors of the whole run.
std::string attention_text(const std::vector<AttentionFault>& faults, const AttentionFault& largest);

// One or two sentences about the whole run.
std::string verdict_of(const Story& story, const RunCounts& counts);

// -- documents --

// One line of valid UTF-8. Curves are thinned so that the page stays below 2 MB: the smallest and the largest
// value of each interval are kept. Values that are unknown or not finite are null.
std::string report_json(const Story& story);

// The files of cli/report/, embedded at build time, and their SHA-256 in hexadecimal.
extern const std::string_view kReportHtml, kReportCss, kReportJs, kReportChart;
extern const std::string_view kReportCssHash, kReportJsHash, kReportChartHash;

// The story as Markdown of at most two screens: incidents, evidence, what was not judged, and commands for
// further inspection. Text from the record is made printable. `records`: file names as given on the command
// line.
std::string report_markdown(const Story& story, const std::vector<std::string>& records);

// Every page contains this mark in its first 1024 bytes, so that is_report() recognises it.
inline constexpr std::string_view kReportMark = "<meta name=\"generator\" content=\"foreshock report\">";

// `json`: from report_json(). Its texts come from a trainer, so the page holds them as data, and its content
// security policy allows only the page's own scripts and loads nothing.
std::string report_page(const std::string& json);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_TEXT_H_
