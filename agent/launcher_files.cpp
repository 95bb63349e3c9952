#include "agent/launcher_files.h"

#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>

namespace foreshock {
namespace {

constexpr size_t kMostBytes = 4096;

RunState state_from(const std::string& word) {
  if (word == "finished") return RunState::kFinished;
  if (word == "preempted") return RunState::kPreempted;
  return RunState::kFailed;
}

std::string exit_name(uint64_t launcher_id) { return "exit." + std::to_string(launcher_id) + ".json"; }

// The number between "exit." and ".json"; 0 when there is none.
uint64_t launcher_in(const std::string& name) {
  uint64_t launcher = 0;
  const char* end = name.data() + name.size() - 5;
  const auto [stop, error] = std::from_chars(name.data() + 5, end, launcher);
  return error == std::errc() && stop == end ? launcher : 0;
}

}  // namespace

std::string summary_name(uint64_t launcher_id) { return "summary." + std::to_string(launcher_id) + ".json"; }

std::optional<RunState> exit_of(const Directory& directory, uint64_t launcher_id) {
  if (launcher_id == 0 || !directory.has(exit_name(launcher_id))) return std::nullopt;
  const std::optional<std::string> text = directory.read(exit_name(launcher_id), kMostBytes);
  if (!text && is_shortage(errno)) return std::nullopt;  // it can be read later
  const nlohmann::json json = nlohmann::json::parse(text.value_or(""), nullptr, false);
  if (!json.is_object() || !json.contains("state") || !json["state"].is_string()) return RunState::kFailed;
  return state_from(json["state"]);
}

std::vector<LauncherExit> unanswered_exits(const Directory& directory) {
  std::vector<LauncherExit> exits;
  for (const std::string& name : directory.names("exit.", ".json")) {
    const uint64_t launcher = launcher_in(name);
    if (launcher == 0 || directory.has(summary_name(launcher))) continue;
    if (const std::optional<RunState> state = exit_of(directory, launcher))
      exits.push_back({launcher, *state});
  }
  return exits;
}

bool has_launcher(const Directory& directory) { return directory.is_locked("run.lock"); }

}  // namespace foreshock
