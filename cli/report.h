// foreshock report: the story of a run, from its record.
#ifndef FORESHOCK_CLI_REPORT_H_
#define FORESHOCK_CLI_REPORT_H_

#include <string>
#include <vector>

namespace foreshock::cli {

// The words after `foreshock report`. Returns the exit status: 0, 1 when the page cannot be written, 2 when
// the words or the records are not what they should be.
int report(const std::vector<std::string>& words);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_REPORT_H_
