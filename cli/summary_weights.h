// What the end-of-run summary says about the weights: how far they moved, and whether replicas agree.
#ifndef FORESHOCK_CLI_SUMMARY_WEIGHTS_H_
#define FORESHOCK_CLI_SUMMARY_WEIGHTS_H_

#include <string>

#include "cli/pass_totals.h"
#include "cli/summary_words.h"

namespace foreshock::cli {

// Lines of the summary, `ranks` of which is not empty; "" where there are no weights to follow.
std::string weights_facts(const Json& ranks, const Paint& paint);

// Tensors that optimizers step and that never have a turn, with the reason; "" where there are none.
std::string unfollowed_text(const Json& ranks);

// Whether there are data-parallel replicas that can be compared, and whether they agree; "" when it is not
// known.
std::string replicas_text(const Json& ranks, const Paint& paint);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_SUMMARY_WEIGHTS_H_
