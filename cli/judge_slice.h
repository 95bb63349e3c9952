// foreshock judge on the file of a flagged slice: the same judgement again, bit for bit.
#ifndef FORESHOCK_CLI_JUDGE_SLICE_H_
#define FORESHOCK_CLI_JUDGE_SLICE_H_

#include <string>
#include <vector>

namespace foreshock::cli {

// Computes reference, plain attention and deviation anew and prints them beside what is stored. The exit
// status: 0 every bit is the stored one and the file is as it was written, 1 not so, 2 it cannot be judged.
int judge_slice(const std::string& path);

// Runs the operation again with torch: lab/python/foreshock_rerun.py. `words` are those after "judge". Comes
// back only with 2, when that cannot be started.
int judge_rerun(const std::vector<std::string>& words);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_JUDGE_SLICE_H_
