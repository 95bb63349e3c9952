// The end-of-run summary, printed from its JSON (docs/summary.md has the fields). Numbers that are not known
// are "unknown", never 0.
#ifndef FORESHOCK_CLI_SUMMARY_H_
#define FORESHOCK_CLI_SUMMARY_H_

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/format.h"

namespace foreshock::cli {

// The text of the summary; ANSI colour if `colour`. "" when `json` is none.
std::string summary_text(const std::string& json, bool colour);

// One line: run, state, step, loss, deviation ratio forward/backward, verdict.
std::string brief_text(const std::string& json, bool colour);

// Writes it to a descriptor, in colour when that is a terminal and NO_COLOR is unset.
void print_summary(const std::string& json, int descriptor);

// Whether lines of the record could not be written.
bool lacks_record_lines(const std::string& json);

// Whether the summary speaks of any rank.
bool has_ranks(const std::string& json);

// Of processes that trained and that the agent could not follow: how many, and why the last of them. "" when
// there were none.
std::string refused_line(const std::string& json);

// Whether another launcher of the same run had some.
bool has_other_ranks(const std::string& json);

// What the end of a run says of the slices that --save-flagged has kept.

// Of the JSON of a summary: where they are and how to judge them, and what could not be kept. Empty when
// there is nothing to say.
std::vector<std::string> flagged_lines(const std::string& json);

// What the end-of-run summary says about the ranks as a set: how many, in how many processes, who ended
// early.

// `ranks` is "ranks" of the summary, not empty: one entry per process that trained.

// "1 rank", "8 ranks", "8 ranks in 16 processes (2 attempts)".
std::string ranks_text(const nlohmann::json& ranks);

// "rank 3 at step 120, rank 5 at step 118, of 400"; "" when all ranks of the last attempt have come equally
// far.
std::string ended_early_text(const nlohmann::json& ranks);

// Where names, norms and weights were given up: "from step 96 on", "from step 96 on in 2 of 8 ranks"; ""
// where they were not.
std::string given_up_text(const nlohmann::json& ranks);

// What a summary or a state (docs/summary.md) says, read without trust in its shape, and its ranks put
// together.

using Json = nlohmann::json;

// The number at a JSON pointer; nothing where there is none.
std::optional<double> number(const Json& json, const std::string& pointer);

// The text there, or "". Names come from a trainer: control characters are question marks here, so that none
// of them reaches a terminal.
std::string text(const Json& json, const std::string& pointer);

// Adds the counts of the object there, each under its name, to *total; those of 0 are left out.
void add_reasons(std::map<std::string, double>* total, const Json& json, const std::string& pointer);

// One pass over all ranks: counts add up, means weigh by what was judged, extremes stay extremes.
struct PassTotals {
  std::optional<double> calls, unsampled, sampled, judged, in_flight, nonfinite;
  std::optional<double> partial;  // of those judged: calls that saw a part of the keys (context parallelism)
  std::optional<double> layers;   // with a judged slice, on the rank that has most
  std::map<std::string, double> skipped, lost;
  std::optional<double> error_mean, ratio_mean, ratio_max;
  bool compared = false;  // some result was compared, not scores alone, as with dropout
  bool biased = false;    // some rank is
  std::optional<double> bias,
      bias_z;  // of the rank where it is largest, among those that are biased if any is
};

// `pass`: "forward" or "backward".
PassTotals totals_of(const Json& ranks, const std::string& pass);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_SUMMARY_H_
