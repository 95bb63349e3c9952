// What a summary says of a run in one line: whether anything is wrong, and what first.
#ifndef FORESHOCK_CLI_VERDICT_H_
#define FORESHOCK_CLI_VERDICT_H_

#include <string>

#include "cli/pass_totals.h"
#include "cli/summary_words.h"

namespace foreshock::cli {

// `passes`: forward and backward, of all `ranks` of the summary.
std::string verdict(const PassTotals (&passes)[2], const Json& ranks, const Paint& paint);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_VERDICT_H_
