// Which Python interpreter a command will use, found without running it.
#ifndef FORESHOCK_CLI_PYTHON_FINDER_H_
#define FORESHOCK_CLI_PYTHON_FINDER_H_

#include <string>
#include <vector>

namespace foreshock::cli {

struct FoundPython {
  std::string executable;            // absolute; "" when none was found
  bool certain = false;              // false: a guess, the python3 of PATH
  std::vector<std::string> options;  // words between the interpreter and its script, e.g. -I
};

// Looks through env, nice, numactl and their like; knows python itself, scripts by their first line
// (torchrun, accelerate and every other console script), and pip's /bin/sh form of long first lines.
FoundPython find_python(const std::vector<std::string>& command);

// "" when our Python helper comes in there (through PYTHONPATH and torch's entry points), else why it does
// not, what is missing then, and what to do.
std::string helper_problem(const FoundPython& python);

// True for env, nice, srun, mpirun and their like: programs that start the rest of their words.
bool starts_a_command(const std::string& program);

// `name` as the shell would find it; "" when it is not there. `path` as in PATH.
std::string look_up(const std::string& name, const std::string& path);

// The interpreter of a script, "" when the file is none of Python's.
std::string script_interpreter(const std::string& script, const std::string& path);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_PYTHON_FINDER_H_
