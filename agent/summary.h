// Writes the text of the summary of a run. `foreshock run` prints it after its command has ended, `foreshock
// status` for a live run. The verdict comes first; the text names what was not checked.
#ifndef FORESHOCK_AGENT_SUMMARY_H_
#define FORESHOCK_AGENT_SUMMARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/flagged.h"
#include "agent/inventory.h"
#include "agent/rank_state.h"
#include "agent/totals.h"
#include "agent/weights.h"

namespace foreshock {

inline constexpr size_t kSummaryColumns = 80;
inline constexpr size_t kSummaryLines = 30;

// The input of a summary. Pointers are borrowed; `weights` may be null.
struct SummaryInput {
  std::string run;
  RunState state = RunState::kRunning;
  std::vector<const RankStatistics*> ranks;  // one per process, in ascending order of their ranks
  const Weights* weights = nullptr;
  size_t ranks_here = 1;                 // ranks of the run on this node
  int cores_per_rank = 1;                // the agent's CPU time, divided by this number, counts as slowdown
  uint64_t refused_segments = 0;         // trainer processes that the agent cannot follow
  std::string refusal;                   // the reason for the last one
  uint64_t processes_left_out = 0;       // ended trainer processes whose statistics are no longer kept
  std::string flagged_directory;         // folder of the unusual ("flagged") slices, --save-flagged
  std::optional<FlaggedCounts> flagged;  // absent: no slices are kept
  std::string record;                    // path of the record; empty: the agent writes none
  std::string record_problem;  // why the record lacks lines or cannot be written now; empty: it is well
};

using Notes = std::vector<std::pair<std::string, std::string>>;  // label and text of each note
// Returns what was not seen, sampled or read, the most important first (summary_notes.cpp). `layers` and
// `passes` are those of `input.ranks`, which has a rank.
Notes notes_of(const SummaryInput& input, const AttentionInventory& layers, const PassTotals (&passes)[2]);

// Returns at most kSummaryLines lines of kSummaryColumns columns. Control characters in names are replaced.
std::string summary_text(const SummaryInput& input);
// Returns one line: run, state, step, loss, error of attention, verdict.
std::string summary_line(const SummaryInput& input);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_SUMMARY_H_
