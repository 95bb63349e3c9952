// What the end-of-run summary says about the ranks as a set: how many, in how many processes, who ended
// early.
#ifndef FORESHOCK_CLI_SUMMARY_RANKS_H_
#define FORESHOCK_CLI_SUMMARY_RANKS_H_

#include <nlohmann/json.hpp>
#include <string>

namespace foreshock::cli {

// `ranks` is "ranks" of the summary, not empty: one entry per process that trained.

// "1 rank", "8 ranks", "8 ranks in 16 processes (2 attempts)".
std::string ranks_text(const nlohmann::json& ranks);

// "rank 3 at step 120, rank 5 at step 118, of 400"; "" when all ranks of the last attempt have come equally
// far.
std::string ended_early_text(const nlohmann::json& ranks);

// Where names, norms and weights were given up: "from step 96 on", "from step 96 on in 2 of 8 ranks"; ""
// where they were not.
std::string given_up_text(const nlohmann::json& ranks);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_SUMMARY_RANKS_H_
