// What the end of a run says of the slices that --save-flagged has kept.
#ifndef FORESHOCK_CLI_SUMMARY_FLAGGED_H_
#define FORESHOCK_CLI_SUMMARY_FLAGGED_H_

#include <string>
#include <vector>

namespace foreshock::cli {

// Of the JSON of a summary: where they are and how to judge them, and what could not be kept. Empty when
// there is nothing to say.
std::vector<std::string> flagged_lines(const std::string& json);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_SUMMARY_FLAGGED_H_
