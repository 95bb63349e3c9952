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

}  // namespace

int agent(const Arguments& arguments) {
  AgentOptions options;
  options.directory = arguments.text(OptionId::kRunDirectory);
  while (options.directory.size() > 1 && options.directory.back() == '/') options.directory.pop_back();
  if (options.directory.empty()) return wrong_use("say which run to serve: foreshock agent --dir DIR");
  const std::string run_id = arguments.text(OptionId::kRunId);
  options.run_id = run_id.empty() ? last_component(options.directory) : run_id;
  options.bind = arguments.text(OptionId::kBind);
  options.port = std::atoi(arguments.text(OptionId::kPort).c_str());
  options.record = arguments.text(OptionId::kRecord);
  parse_ratio(arguments.text(OptionId::kMaxSlowdown).c_str(), &options.max_slowdown);
  parse_count(arguments.text(OptionId::kEvery).c_str(), &options.every);
  options.keep_alive = arguments.has_flag(OptionId::kKeepAlive);
  std::signal(SIGXFSZ, SIG_IGN);  // beyond `ulimit -f` a write fails, and is counted; it does not kill
  const int status = run_agent(options);
  remove_after_agent(options.directory);
  return status;
}

}  // namespace foreshock::cli
