// What a summary concludes about attention: whether anything is wrong, what first, and on how much that
// rests.
#ifndef FORESHOCK_CLI_VERDICT_H_
#define FORESHOCK_CLI_VERDICT_H_

#include <string>
#include <vector>

#include "cli/summary.h"

namespace foreshock::cli {

// A pass of which fewer slices were judged has no verdict "sound": an error of 5 % in one layer is found
// within 8 sampled calls of it (docs/verdicts.md).
inline constexpr double kLeastSamples = 8;

struct Verdict {
  enum class State {
    kNotJudged,   // no slice was
    kScoresOnly,  // dropout: outputs cannot be compared
    kTooFew,      // below kLeastSamples in both passes
    kSound,       // of the passes that `evidence` names
    kFault        // `findings` is not empty
  };
  State state = State::kNotJudged;
  std::vector<std::string> findings;  // each a sentence, the most telling first
  std::string evidence;               // "over 62 forward and 46 backward samples of 2 layers"; "" without any
  std::vector<std::string> not_judged;  // "backward", "dK and dV"
  bool partial = false;                 // calls of context parallelism were judged by what they were given

  // "attention errs no more than its precision explains, over 62 forward samples of 2 layers; backward: too
  // few samples for a verdict (3)"
  std::string sentence() const;
  bool is_fault() const { return state == State::kFault; }
};

// `ranks` of a summary or state (docs/summary.md); `passes` are its totals.
Verdict verdict_of(const PassTotals (&passes)[2], const Json& ranks);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_VERDICT_H_
