#include "cli/python_finder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace foreshock::cli {
namespace {

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// python, python3, python3.11, pypy3
bool is_python_name(const std::string& name) {
  for (const char* stem : {"python", "pypy"}) {
    if (name.rfind(stem, 0) == 0 &&
        name.find_first_not_of("0123456789.", std::string(stem).size()) == std::string::npos) {
      return true;
    }
  }
  return false;
}

// What can be had of a training without the helper: ParameterClock of integrations/torch/clock.h.
constexpr const char* kWithoutHelper =
    "; else steps are counted from 1, and learning rate, gradient norms and layer names stay unknown";

// -I, -E, or a cluster of one-letter options with them (-uE); not -X..., -W..., --long.
char isolating_letter(const std::string& option) {
  if (option.find_first_not_of("bBdEiIOPqRsSuvx", 1) != std::string::npos) return 0;
  if (option.find('I') != std::string::npos) return 'I';
  return option.find('E') != std::string::npos ? 'E' : 0;
}

bool is_program(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

std::string search_path() {
  const char* path = std::getenv("PATH");
  return path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
}

std::vector<std::string> options_from(const std::vector<std::string>& command, size_t at) {
  std::vector<std::string> options;
  for (; at < command.size() && command[at].size() > 1 && command[at][0] == '-'; ++at) {
    if (command[at] == "-c" || command[at] == "-m") break;
    options.push_back(command[at]);
  }
  return options;
}

}  // namespace

std::string helper_problem(const FoundPython& python) {
  for (const std::string& option : python.options) {
    if (const char letter = isolating_letter(option); letter != 0)
      return std::string("python -") + letter + (letter == 'I' ? " (isolated mode)" : "") +
             " ignores PYTHONPATH, by which the helper comes: leave it out" + kWithoutHelper;
  }
  const char* autoload = std::getenv("TORCH_DEVICE_BACKEND_AUTOLOAD");
  if (autoload != nullptr && std::string(autoload) == "0")
    return std::string("TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps the helper out: unset it") + kWithoutHelper;
  return "";
}

bool starts_a_command(const std::string& program) {
  static constexpr const char* kWrappers[] = {"env",     "nice",   "ionice", "numactl", "taskset",
                                              "timeout", "stdbuf", "nohup",  "setsid",  "time",
                                              "chrt",    "srun",   "mpirun", "mpiexec"};
  return std::find(std::begin(kWrappers), std::end(kWrappers), base_name(program)) != std::end(kWrappers);
}

std::string look_up(const std::string& name, const std::string& path) {
  if (name.empty()) return "";
  if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
  std::istringstream directories(path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    const std::string candidate = (directory.empty() ? "." : directory) + "/" + name;
    if (is_program(candidate)) return candidate;
  }
  return "";
}

std::string script_interpreter(const std::string& script, const std::string& path) {
  std::ifstream file(script, std::ios::binary);
  std::string first, second;
  if (file.get() != '#' || file.get() != '!' || !std::getline(file, first)) return "";
  std::istringstream words(first);
  std::string interpreter, word;
  words >> interpreter;
  if (base_name(interpreter) == "env") {
    while (words >> word) {
      if (word[0] != '-' && word.find('=') == std::string::npos) break;
    }
    interpreter = look_up(word, path);
  } else if (base_name(interpreter) == "sh" && std::getline(file, second) &&
             second.rfind("'''exec' ", 0) == 0) {
    std::istringstream rest(second.substr(9));
    rest >> interpreter;
    interpreter.erase(std::remove(interpreter.begin(), interpreter.end(), '"'), interpreter.end());
  }
  return is_python_name(base_name(interpreter)) ? interpreter : "";
}

FoundPython find_python(const std::vector<std::string>& command) {
  const std::string path = search_path();
  for (size_t at = 0; at < command.size(); ++at) {
    const std::string program = look_up(command[at], path);
    if (is_python_name(base_name(command[at])) && !program.empty()) {
      return {program, true, options_from(command, at + 1)};
    }
    if (const std::string python = program.empty() ? "" : script_interpreter(program, path);
        !python.empty()) {
      return {python, true, {}};
    }
    if (at == 0 && !starts_a_command(command[0])) break;
  }
  return {look_up("python3", path), false, {}};
}

}  // namespace foreshock::cli
