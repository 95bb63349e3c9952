// foreshock merge: the records of several nodes as one of the job.
#ifndef FORESHOCK_CLI_MERGE_H_
#define FORESHOCK_CLI_MERGE_H_

#include <string>
#include <vector>

namespace foreshock::cli {

// `words`: what stands after `merge`. Returns the exit status: 2 with one line for records that cannot be
// merged, 1 when the result cannot be written.
int merge(const std::vector<std::string>& words);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_MERGE_H_
