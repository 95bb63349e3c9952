// foreshock judge: stored attention calls, flagged slices, or somebody's Python attention function, against
// fp64.
#ifndef FORESHOCK_CLI_JUDGE_H_
#define FORESHOCK_CLI_JUDGE_H_

#include <string>
#include <vector>

namespace foreshock::cli {

// `words` are those after "judge". Returns the exit status: 0 within the gates, 1 beyond them, 2 for wrong
// use. Of flagged slices: 0 reproduced bit for bit, 1 not.
int judge(const std::vector<std::string>& words);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_JUDGE_H_
