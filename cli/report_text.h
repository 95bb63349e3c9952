// Makes the texts of `foreshock report`: phrases about detectors, sentences about loss events, and the report
// itself as JSON (docs/report.md has its keys), Markdown, or an HTML page that draws itself from the JSON.
// The levels of a detector are quiet, watch and warn. "The benchmark" measures detectors on small trainings.
#ifndef FORESHOCK_CLI_REPORT_TEXT_H_
#define FORESHOCK_CLI_REPORT_TEXT_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/detection.h"
#include "cli/report_model.h"
#include "detect/detector.h"
#include "detect/watch.h"

namespace foreshock::cli {

// Explains an observation: a rise of a detector's level, a kind of loss event, or a Clue. Its readers are
// familiar with trainings but not with foreshock. Members except `plain` are sentences. No member is empty.
struct ReportText {
  const char* plain;            // the observation as a short clause: "the gradient norm grew steadily"
  const char* consistent_with;  // a cause of the loss event that fits the observation
  const char* not_excluded;     // another explanation that remains possible
  const char* to_try;           // an experiment that distinguishes them, or a remedy
};

// Circumstances of a loss event that have an explaining text.
enum class Clue : int {
  kNothingBefore,    // no detector left level quiet before the event
  kLearningRate,     // the learning rate had changed
  kNonfinite,        // NaN or infinite values before the event
  kReplicasDiffer,   // replicas of weights differ
  kResumed,          // the training had just gone back to a checkpoint
  kSkippedSteps,     // the gradient scaler had skipped steps
  kOneRank,          // other ranks had no event
  kCameAgain,        // the event occurred again when the same steps were repeated
  kDidNotComeAgain,  // the event did not occur again when the same steps were repeated
  kMonitorGap,       // the monitor did not see all steps before the event
  kCount
};
inline constexpr int kClues = static_cast<int>(Clue::kCount);

const ReportText& text_of(DetectorId detector);
// WatchEventKind has also kinds other than loss events; for these the text of a loss spike is returned.
const ReportText& text_of(WatchEventKind kind);
const ReportText& text_of(Clue clue);

// Returns a sentence that says why the detector may have had no value in a run.
const char* why_without_values(DetectorId detector);

std::optional<DetectorId> detector_of(std::string_view name);  // nullopt: unknown name

std::string steps_text(int64_t number);  // "1 step" or "12 345 steps", for example

std::string title_of(const ReportEvent& event);  // "Loss spike at step 2 310", for example

// Describes the course of the loss: the value before the onset, the peak, and whether it has recovered.
std::string course_of(const ReportEvent& event);

// Whether the benchmark has shown that the detector is reliable. Other detectors are called experimental.
bool is_proven(DetectorId detector);

// Returns one or two sentences on a detector's reliability. `measured`: its benchmark results; null: none.
std::string how_sure(const Measured* measured);

// Describes the first sign of the event, from the most reliable of the detectors that left level quiet before
// it: "the gradient norm grew steadily, 9 steps before", with the layer if known. Without a sign: "nothing".
std::string first_sign_of(const ReportEvent& event);

struct RunCounts {
  uint64_t steps = 0;                 // of the rank with the most steps
  uint64_t losses = 0, warnings = 0;  // over all ranks: steps with a known loss; warnings of detectors
};

// Returns a sentence on the attention errors.
std::string attention_text(const LargestError& largest);

// Sorts findings of several agents: the headline of each agent's first finding comes first, in the order of
// severity; among equal headlines the one that began first.
void sort_findings(std::vector<FindingLine>* findings);

// Returns the verdict on the run in a few sentences: the first finding; else the verdicts of the agents; else
// what is known of the loss. `findings`, `agent_verdicts`, `events` and `episodes` of `report` must have been
// set.
std::string verdict_of(const Report& report, const RunCounts& counts);

// Returns the report as JSON in one line of valid UTF-8. So that the page stays below 2 MB, long curves are
// divided into intervals, each with its smallest and largest value. Unknown or non-finite values are null.
std::string report_json(const Report& report);

// The files of cli/report/ and Chart.js, embedded at build time, and their SHA-256 in hexadecimal.
extern const std::string_view kReportHtml, kReportCss, kReportJs, kReportChart;
extern const std::string_view kReportCssHash, kReportJsHash, kReportChartHash;

// Returns the report as Markdown of at most two screens: the first loss events, what was not judged, and
// commands that show more. Replaces control characters. `records`: file names as given on the command line.
std::string report_markdown(const Report& report, const std::vector<std::string>& records);

// Every page has this mark in its first 1024 bytes. Without -o, `foreshock report` overwrites only such
// files.
inline constexpr std::string_view kReportMark = "<meta name=\"generator\" content=\"foreshock report\">";

// Returns the HTML page. `json`: from report_json(). Its texts come from a trainer and are not trusted: the
// page has them only as data, and its content security policy allows only its own scripts and no loading.
std::string report_page(const std::string& json);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_TEXT_H_
