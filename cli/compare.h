// foreshock compare: how far apart checkpoints are.
#ifndef FORESHOCK_CLI_COMPARE_H_
#define FORESHOCK_CLI_COMPARE_H_

#include <string>
#include <vector>

namespace foreshock::cli {

// `words` are those after "compare". Returns the exit status: 0, 1 when a file could not be written, 2 for
// wrong use, and for a checkpoint that cannot be read or has nothing in common with the other.
int compare(const std::vector<std::string>& words);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_COMPARE_H_
