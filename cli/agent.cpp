// foreshock agent: parses and hands over to agent/.
#include "agent/agent.h"

#include <csignal>
#include <cstdlib>
#include <string>

#include "cli/commands.h"
#include "cli/run_directory.h"
#include "cli/say.h"

namespace foreshock::cli {
namespace {

std::string last_component(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// "" or what to do.
std::string problem_of(const AgentOptions& options, const Arguments& arguments) {
  if (options.directory.empty() && options.tree.empty())
    return "say which run to serve, foreshock agent --dir DIR, or which tree of runs, --tree DIR";
  if (!options.directory.empty() && !options.tree.empty()) return "give one of --dir and --tree";
  if (!options.tree.empty() && !options.record.empty())
    return "--record is of a single run: give it to foreshock run, without --agent service";
  if (!options.tree.empty() && !options.save_flagged.empty())
    return "--save-flagged is of a single run, whose user owns the data: give it to foreshock run, without "
           "--agent service";
  return listening_problem(arguments);
}

}  // namespace

int agent(const Arguments& arguments) {
  AgentOptions options;
  options.directory = without_slashes(arguments.text(OptionId::kRunDirectory));
  options.tree = without_slashes(arguments.text(OptionId::kTree));
  const std::string run_id = arguments.text(OptionId::kRunId);
  options.run_id = run_id.empty() ? last_component(options.directory) : run_id;
  options.bind = arguments.text(OptionId::kBind);
  options.port = std::atoi(arguments.text(OptionId::kPort).c_str());
  options.token_file = arguments.text(OptionId::kTokenFile);
  options.file_sd = arguments.text(OptionId::kFileSd);
  options.grafana = without_slashes(arguments.text(OptionId::kGrafana));
  options.on_alert = arguments.text(OptionId::kOnAlert);
  options.save_flagged = arguments.text(OptionId::kSaveFlagged);
  parse_bytes(arguments.text(OptionId::kFlaggedQuota).c_str(), &options.flagged_quota);
  options.record = arguments.text(OptionId::kRecord);
  parse_bytes(arguments.text(OptionId::kRecordHistograms).c_str(), &options.record_histograms);
  parse_ratio(arguments.text(OptionId::kMaxSlowdown).c_str(), &options.max_slowdown);
  parse_count(arguments.text(OptionId::kEvery).c_str(), &options.every);
  parse_count(arguments.text(OptionId::kForgetAfter).c_str(), &options.forget_after_seconds);
  options.keep_alive = arguments.has_flag(OptionId::kKeepAlive);
  if (const std::string problem = problem_of(options, arguments); !problem.empty()) return wrong_use(problem);
  std::signal(SIGXFSZ, SIG_IGN);  // beyond `ulimit -f` a write fails, and is counted; it does not kill
  const int status = run_agent(options);
  if (options.tree.empty()) remove_after_agent(options.directory);
  return status;
}

}  // namespace foreshock::cli
