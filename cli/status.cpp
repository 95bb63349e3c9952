// Implements foreshock status, which prints the state of this user's live runs on this node, and foreshock
// pause and resume, which switch the sampling in these runs off and on.
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

constexpr int kWatchSeconds = 2;  // between two readings of the states, with --watch

// Exit statuses of foreshock status, by how many agents answered (docs/summary.md). 2 is missing here: in all
// commands it means wrong use.
constexpr int kAllAnswered = 0, kNoRun = 1, kSomeSilent = 3;

struct RunState {
  std::string run_id;
  std::string json;     // the agent's answer to /api/v1/state; "": none
  std::string address;  // URL of the agent's page; "": unknown
  std::string reason;   // why `json` is empty
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

int exit_status_of(const std::vector<RunState>& states) {
  if (states.empty()) return kNoRun;
  const bool silent =
      std::any_of(states.begin(), states.end(), [](const RunState& s) { return s.json.empty(); });
  return silent ? kSomeSilent : kAllAnswered;
}

std::string no_live_run(const std::string& run_id) {
  return run_id.empty() ? "no live run" : "no live run '" + run_id + "'";
}

// Returns one line: a JSON array with the agent's answer for each run, or with nulls and a reason.
std::string json_of(const std::vector<RunState>& states) {
  nlohmann::json array = nlohmann::json::array();
  for (const RunState& run : states) {
    if (!run.json.empty())
      array.push_back(nlohmann::json::parse(run.json));
    else
      array.push_back({{"schema", 1},
                       {"run", run.run_id},
                       {"state", nullptr},
                       {"ranks", nullptr},
                       {"reason", run.reason}});
  }
  // Invalid UTF-8 is replaced: dump() would throw an exception otherwise.
  return printable_json(array.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) + "\n";
}

// Returns several lines about a run, after an empty line that separates the runs.
std::string full_text(const RunState& state) {
  if (state.json.empty()) return "\nrun " + state.run_id + ": " + state.reason + "\n";
  const std::string text = read_summary(state.json).text;
  return "\n" + (wants_colour(STDOUT_FILENO) ? in_colour(text) : text) + "  page        " + state.address +
         "\n";
}

std::string one_line(const RunState& state) {
  return state.json.empty() ? state.run_id + "  " + state.reason + "\n" : read_summary(state.json).line;
}

void print(const std::vector<RunState>& states, bool as_json) {
  std::string text = as_json ? json_of(states) : "";
  if (!as_json)
    for (const RunState& state : states) text += full_text(state);
  fputs(text.c_str(), stdout);
  fflush(stdout);
}

// Returns the full texts if they fit into `rows` lines or there is only one run, else one line for each run.
std::string watched_text(const std::vector<RunState>& states, const std::string& run_id, size_t rows) {
  if (states.empty()) return "foreshock: " + no_live_run(run_id) + "; Ctrl-C ends this\n";
  std::string full_texts, short_texts;
  for (const RunState& state : states) {
    full_texts += full_text(state);
    short_texts += one_line(state);
  }
  const bool fits = static_cast<size_t>(std::count(full_texts.begin(), full_texts.end(), '\n')) <= rows;
  return fits || states.size() == 1 ? full_texts.substr(1) : short_texts;  // drops the first empty line
}

int watch_terminal(const Arguments& arguments) {
  Screen screen;
  do {
    screen.draw(watched_text(states_of(arguments), arguments.text(OptionId::kRunId), screen.rows()));
  } while (screen.wait(kWatchSeconds));  // until Ctrl-C
  return kAllAnswered;
}

// Prints the states repeatedly until a signal ends the process. If no run is live, JSON is an empty array
// each time, but the text "no live run" is printed once, until a run appears.
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

// Stores `value` (0: pause, 1: resume) as command_switch of the control file at `path`, which the trainer
// reads. Returns false if the file is not a control file or cannot be written.
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

// Stores `value` in the control files (*.ctl) of the live runs, one for each trainer process (rank).
int switch_runs(const Arguments& arguments, uint32_t value) {
  const std::string run_id = arguments.text(OptionId::kRunId);
  int switched = 0, failed = 0;
  for (const LiveRun& run : live_runs(run_id)) {
    std::error_code error;  // ignored: a run that has just ended may have lost its directory
    for (const auto& entry : std::filesystem::directory_iterator(run.directory, error)) {
      if (entry.path().extension() != ".ctl") continue;
      if (store_switch(entry.path(), value))
        ++switched;
      else
        ++failed;
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
    return exit_status_of(states);
  }
  if (!as_json && Screen::is_terminal()) return watch_terminal(arguments);
  watch_lines(arguments, as_json);
}

int pause(const Arguments& arguments) { return switch_runs(arguments, 0); }

int resume(const Arguments& arguments) { return switch_runs(arguments, 1); }

}  // namespace foreshock::cli
