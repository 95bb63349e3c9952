// What the end-of-run summary says of what was not seen, or seen by others: attention beyond the hooks, in
// CUDA graphs, by its kernels; parameters without a name, numbers on devices that did not come.
#ifndef FORESHOCK_CLI_SUMMARY_PARTS_H_
#define FORESHOCK_CLI_SUMMARY_PARTS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "cli/format.h"
#include "cli/summary.h"

namespace foreshock::cli {

// Lines, none where there is nothing to tell. `ranks` is "ranks" of the summary.
std::string coverage_facts(const nlohmann::json& ranks);

// What the end-of-run summary says about the detectors: which warned, and what came before a loss event.

// Lines of the summary; "" where no detector warned and the loss was well.
std::string precursors_facts(const Json& ranks);

// What the end-of-run summary says about the weights: how far they moved, and whether replicas agree.

// Lines of the summary, `ranks` of which is not empty; "" where there are no weights to follow.
std::string weights_facts(const Json& ranks, const Paint& paint);

// Tensors that optimizers step and that never have a turn, with the reason; "" where there are none.
std::string unfollowed_text(const Json& ranks);

// Whether there are data-parallel replicas that can be compared, and whether they agree; "" when it is not
// known.
std::string replicas_text(const Json& ranks, const Paint& paint);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_SUMMARY_PARTS_H_
