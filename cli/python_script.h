// The lab's Python programs, run with the caller's interpreter.
#ifndef FORESHOCK_CLI_PYTHON_SCRIPT_H_
#define FORESHOCK_CLI_PYTHON_SCRIPT_H_

#include <string>
#include <vector>

namespace foreshock::cli {

// Becomes `script` of share/foreshock/lab with `words`, from which --python EXE is taken. Comes back only
// when that cannot be done: 2, and one line has said why.
int run_python_script(const std::string& script, std::vector<std::string> words);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_PYTHON_SCRIPT_H_
