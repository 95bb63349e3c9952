#include "cli/installation.h"

#include <unistd.h>

#include <filesystem>

namespace foreshock::cli {

Installation find_installation() {
  std::error_code ignored;
  const std::filesystem::path executable = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path root = executable.parent_path().parent_path();
  const std::filesystem::path share = root / "share" / "foreshock";
  return {executable, root / "lib" / "libforeshock.so", share / "python", share / "torch", root / "include"};
}

std::string installation_problem(const Installation& installation) {
  for (const std::string& path :
       {installation.library, installation.python_helper + "/foreshock_torch/__init__.py",
        installation.adapter_sources + "/build_adapter.py", installation.headers + "/foreshock/hook.h"}) {
    if (access(path.c_str(), R_OK) != 0) return path + " is missing; build or install foreshock again";
  }
  // The dynamic linker splits LD_PRELOAD at both and expands the third; there is no way to quote them.
  if (installation.library.find_first_of(" :$") != std::string::npos) {
    return "the path " + installation.library +
           " cannot be preloaded; move foreshock to one without ' ', ':' and '$'";
  }
  if (installation.python_helper.find(':') != std::string::npos)
    return "a ':' in the path of foreshock breaks PYTHONPATH";
  return "";
}

}  // namespace foreshock::cli
