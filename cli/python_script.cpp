#include "cli/python_script.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace foreshock::cli {
namespace {

int fail(const std::string& problem) {
  std::fprintf(stderr, "foreshock judge: %s\n", problem.c_str());
  return 2;
}

}  // namespace

int run_python_script(const std::string& script, std::vector<std::string> words) {
  std::string python = "python3";
  if (const auto at = std::find(words.begin(), words.end(), "--python"); at != words.end()) {
    if (at + 1 == words.end()) return fail("--python needs a value");
    python = *(at + 1);
    words.erase(at, at + 2);
  }
  std::error_code error;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto path = executable.parent_path().parent_path() / "share/foreshock/lab" / script;
  if (error || !std::filesystem::exists(path)) return fail("it is not installed at " + path.string());
  std::vector<std::string> all{python, path.string()};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (std::string& word : all) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(python.c_str(), arguments.data());
  return fail("cannot run " + python + " (" + std::strerror(errno) + "): name one with --python");
}

}  // namespace foreshock::cli
