#include "agent/launcher_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "agent/discovery.h"

namespace foreshock {
namespace {

RunState state_from(const std::string& word) {
  if (word == "finished") return RunState::kFinished;
  if (word == "preempted") return RunState::kPreempted;
  return RunState::kFailed;
}

}  // namespace

std::string summary_path(const std::string& directory, uint64_t launcher_pid) {
  return directory + "/summary." + std::to_string(launcher_pid) + ".json";
}

std::vector<LauncherExit> unanswered_exits(const std::string& directory) {
  std::vector<LauncherExit> exits;
  for (const std::string& name : names_in(directory, "exit.", ".json")) {
    LauncherExit exit;
    exit.launcher_pid = std::strtoull(name.c_str() + 5, nullptr, 10);
    if (exit.launcher_pid == 0 || access(summary_path(directory, exit.launcher_pid).c_str(), F_OK) == 0)
      continue;
    std::ifstream file(directory + "/" + name);
    const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
    if (json.is_object() && json.contains("state") && json["state"].is_string())
      exit.state = state_from(json["state"]);
    exits.push_back(exit);
  }
  return exits;
}

bool write_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file << text;
    if (!file.flush()) {
      unlink(temporary.c_str());
      return false;
    }
  }
  return std::rename(temporary.c_str(), path.c_str()) == 0;
}

bool has_launcher(const std::string& directory) {
  const int fd = open((directory + "/run.lock").c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  const bool held = flock(fd, LOCK_EX | LOCK_NB) != 0;
  close(fd);
  return held;
}

}  // namespace foreshock
