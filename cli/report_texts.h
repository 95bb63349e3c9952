// What a report says of each detector, of each kind of loss event and of each clue: the one table of these
// sentences. None of them names a cause: a detector sees what moved, not why.
#ifndef FORESHOCK_CLI_REPORT_TEXTS_H_
#define FORESHOCK_CLI_REPORT_TEXTS_H_

#include <optional>
#include <string_view>

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
// Of kLossSpike, kDivergence and kLossRise; of another kind: as of a spike.
const ReportText& text_of(WatchEventKind kind);
const ReportText& text_of(Clue clue);

// Why a detector may have had no value in a whole run.
const char* why_without_values(DetectorId detector);

// Nothing: there is no detector of that name.
std::optional<DetectorId> detector_of(std::string_view name);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_TEXTS_H_
