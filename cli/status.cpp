// foreshock status: prints the state of this user's live runs on this node. foreshock pause and resume:
// switch the sampling in these runs off and on.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/agent_client.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "segment/layout.h"

namespace foreshock::cli {
namespace {

constexpr int kWatchSeconds = 2;

// Exit statuses, documented in docs/summary.md. 2 means wrong use, as for all commands.
constexpr int kAllAnswered = 0, kNoRun = 1, kSomeSilent = 3;

struct RunState {
  std::string run_id;
  std::string json;     // the answer of the agent's /api/v1/state; "" if it does not answer
  std::string address;  // URL of the page
  std::string reason;   // why there is no state
};

RunState state_of(const LiveRun& run, const std::string& token_file) {
  const std::optional<AgentAddress> agent = read_agent_address(run.directory);
  if (!agent) return {run.run_id, "", "", "no agent"};
  RunState state = {run.run_id, "", agent->url(), ""};
  if (!read_agent_state(*agent, token_file, &state.json, &state.reason)) state.json.clear();
  return state;
}

std::vector<RunState> states_of(const Arguments& arguments) {
  const std::string token_file = arguments.text(OptionId::kTokenFile);
  std::vector<RunState> states;
  for (const LiveRun& run : live_runs(arguments.text(OptionId::kRunId)))
    states.push_back(state_of(run, token_file));
  return states;
}

int status_of(const std::vector<RunState>& states) {
  if (states.empty()) return kNoRun;
  const bool silent =
      std::any_of(states.begin(), states.end(), [](const RunState& s) { return s.json.empty(); });
  return silent ? kSomeSilent : kAllAnswered;
}

std::string no_live_run(const std::string& run_id) {
  return run_id.empty() ? "no live run" : "no live run '" + run_id + "'";
}

// Returns a JSON array in one line. Its entry for a run is the state, or nulls and the reason.
std::string json_of(const std::vector<RunState>& states) {
  nlohmann::json array = nlohmann::json::array();
  for (const RunState& each : states) {
    if (!each.json.empty())
      array.push_back(nlohmann::json::parse(each.json));
    else
      array.push_back({{"schema", 1},
                       {"run", each.run_id},
                       {"state", nullptr},
                       {"ranks", nullptr},
                       {"reason", each.reason}});
  }
  return array.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string full_text(const RunState& state) {
  if (state.json.empty()) return "\nrun " + state.run_id + ": " + state.reason + "\n";
  const std::string text = read_summary(state.json).text;
  return "\n" + (wants_colour(STDOUT_FILENO) ? in_colour(text) : text) + "  page        " + state.address +
         "\n";
}

std::string brief(const RunState& state) {
  return state.json.empty() ? state.run_id + "  " + state.reason + "\n" : read_summary(state.json).line;
}

void print(const std::vector<RunState>& states, bool as_json) {
  std::string text = as_json ? json_of(states) : "";
  if (!as_json)
    for (const RunState& state : states) text += full_text(state);
  fputs(text.c_str(), stdout);
  fflush(stdout);
}

// Returns the full text of every run if all texts fit into `rows` lines, else one line for each run.
std::string watched_text(const std::vector<RunState>& states, const std::string& run_id, size_t rows) {
  if (states.empty()) return "foreshock: " + no_live_run(run_id) + "; Ctrl-C ends this\n";
  std::string full_texts, briefs;
  for (const RunState& state : states) {
    full_texts += full_text(state);
    briefs += brief(state);
  }
  const bool fits = static_cast<size_t>(std::count(full_texts.begin(), full_texts.end(), '\n')) <= rows;
  // A full text begins with an empty line, to separate the runs; the first one is dropped.
  return fits || states.size() == 1 ? full_texts.substr(full_texts[0] == '\n') : briefs;
}

int watch_terminal(const Arguments& arguments) {
  Screen screen;
  do {
    screen.draw(watched_text(states_of(arguments), arguments.text(OptionId::kRunId), screen.rows()));
  } while (screen.wait(kWatchSeconds));
  return kAllAnswered;
}

// Prints the states repeatedly, for an output other than a terminal, until a signal ends the process. If
// there is no run, reports this only the first time.
[[noreturn]] void watch_lines(const Arguments& arguments, bool as_json) {
  for (bool was_empty = false;;) {
    const std::vector<RunState> states = states_of(arguments);
    print(states, as_json);
    if (states.empty() && !was_empty && !as_json) say(no_live_run(arguments.text(OptionId::kRunId)));
    was_empty = states.empty();
    const timespec pause = {kWatchSeconds, 0};
    nanosleep(&pause, nullptr);
  }
}

// Stores `value` (0: pause, 1: resume) as command_switch of the control file at `path`. Returns false if the
// file is not a control file or cannot be written.
bool store_switch(const std::string& path, uint32_t value) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0) return false;
  char magic[sizeof segment::kControlMagic];
  const bool is_control = pread(descriptor, magic, sizeof magic, 0) == sizeof magic &&
                          memcmp(magic, segment::kControlMagic, sizeof magic) == 0;
  const bool stored = is_control && pwrite(descriptor, &value, sizeof value,
                                           offsetof(segment::Control, command_switch)) == sizeof value;
  close(descriptor);
  return stored;
}

// Stores `value` in the control file <segment>.ctl of each trainer process of the live runs, which reads it.
int switch_runs(const Arguments& arguments, uint32_t value) {
  const std::string run_id = arguments.text(OptionId::kRunId);
  int switched = 0, failed = 0;
  for (const LiveRun& run : live_runs(run_id)) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(run.directory, error)) {
      if (entry.path().extension() != ".ctl") continue;
      ++(store_switch(entry.path(), value) ? switched : failed);
    }
  }
  if (switched == 0 && failed == 0) {
    say(no_live_run(run_id) + " to " + (value != 0 ? "resume" : "pause") +
        "; `foreshock status` lists what is there");
    return 1;
  }
  say(std::string(value != 0 ? "resumed " : "paused ") + std::to_string(switched) +
      (switched == 1 ? " rank" : " ranks") + (failed == 0 ? "" : ", failed for " + std::to_string(failed)));
  return failed == 0 ? 0 : 1;
}

}  // namespace

int status(const Arguments& arguments) {
  const bool as_json = arguments.has_flag(OptionId::kJson);
  if (!arguments.has_flag(OptionId::kWatch)) {
    const std::vector<RunState> states = states_of(arguments);
    print(states, as_json);
    if (states.empty() && !as_json) say(no_live_run(arguments.text(OptionId::kRunId)));
    return status_of(states);
  }
  if (!as_json && Screen::is_terminal()) return watch_terminal(arguments);
  watch_lines(arguments, as_json);
}

int pause(const Arguments& arguments) { return switch_runs(arguments, 0); }

int resume(const Arguments& arguments) { return switch_runs(arguments, 1); }

}  // namespace foreshock::cli
