// foreshock lab: the numerics microbenchmark.
#ifndef FORESHOCK_CLI_LAB_H_
#define FORESHOCK_CLI_LAB_H_

#include <string>
#include <vector>

namespace foreshock::cli {

// `words` are those after "lab". Returns the exit status: 0, 1 when a file could not be written, 2 for wrong
// use.
int lab(const std::vector<std::string>& words);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_LAB_H_
