// What the end-of-run summary says of what was not seen, or seen by others: attention beyond the hooks, in
// CUDA graphs, by its kernels; parameters without a name, numbers on devices that did not come.
#ifndef FORESHOCK_CLI_SUMMARY_COVERAGE_H_
#define FORESHOCK_CLI_SUMMARY_COVERAGE_H_

#include <nlohmann/json.hpp>
#include <string>

namespace foreshock::cli {

// Lines, none where there is nothing to tell. `ranks` is "ranks" of the summary.
std::string coverage_facts(const nlohmann::json& ranks);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_SUMMARY_COVERAGE_H_
