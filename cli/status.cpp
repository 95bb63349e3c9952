// foreshock status: the live runs of this user on this node, as their agents tell.
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "cli/agent_keeper.h"
#include "cli/commands.h"
#include "cli/live_runs.h"
#include "cli/say.h"
#include "cli/summary.h"
#include "exporters/http_get.h"

namespace foreshock::cli {
namespace {

constexpr int kTimeoutMs = 2000;
constexpr time_t kWatchSeconds = 2;

struct RunState {
  std::string json;     // "" when the agent does not answer
  std::string address;  // of the page
  std::string problem;
};

RunState ask(const LiveRun& run) {
  const std::optional<AgentAddress> agent = read_agent_address(run.directory);
  if (!agent) return {"", "", "no agent"};
  RunState state = {"", agent->url(), ""};
  if (!http_get(agent->address, agent->port, "/api/v1/state", kTimeoutMs, &state.json, &state.problem))
    state.json.clear();
  return state;
}

// One line of JSON per run.
std::string json_line(const std::string& state) {
  const nlohmann::json json = nlohmann::json::parse(state, nullptr, false);
  return json.is_discarded() ? "" : json.dump() + "\n";
}

std::string describe(const LiveRun& run, const RunState& state) {
  if (state.json.empty()) return "\nrun " + run.run_id + ": " + state.problem + "\n";
  const bool colour = isatty(STDOUT_FILENO) == 1;
  return summary_text(state.json, colour) + "  page                " + state.address + "\n";
}

int show(const std::string& run_id, bool as_json) {
  const std::vector<LiveRun> runs = live_runs(run_id);
  for (const LiveRun& run : runs) {
    const RunState state = ask(run);
    fputs((as_json ? json_line(state.json) : describe(run, state)).c_str(), stdout);
  }
  fflush(stdout);
  if (runs.empty()) say(run_id.empty() ? "no live run" : "no live run '" + run_id + "'");
  return runs.empty() ? 1 : 0;
}

}  // namespace

int status(const Arguments& arguments) {
  const std::string run_id = arguments.text(OptionId::kRunId);
  const bool as_json = arguments.has_flag(OptionId::kJson);
  if (!arguments.has_flag(OptionId::kWatch)) return show(run_id, as_json);
  for (;;) {
    if (!as_json && isatty(STDOUT_FILENO) == 1) fputs("\033[H\033[2J", stdout);
    show(run_id, as_json);
    const timespec pause = {kWatchSeconds, 0};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace foreshock::cli
