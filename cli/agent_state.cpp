#include "cli/agent_state.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "exporters/http_get.h"
#include "exporters/http_routes.h"

namespace foreshock::cli {
namespace {

constexpr int kTimeoutMs = 2000;
constexpr const char* kTokenWanted = "answered 401";

}  // namespace

bool read_agent_state(const AgentAddress& agent, const std::string& token_file, std::string* json,
                      std::string* error) {
  struct stat status = {};
  std::string problem;
  const std::string token = token_file.empty() ? "" : read_token(token_file, &status, &problem);
  // A service follows other runs too, and without a name tells of the one that came last.
  const std::string path =
      agent.run.empty() ? "/api/v1/state" : "/api/v1/state?run=" + percent_encoded(agent.run);
  if (!http_get(agent.address, agent.port, path, kTimeoutMs, json, error, token)) {
    if (token_file.empty() && error->find(kTokenWanted) != std::string::npos)
      problem = "its token is shown with --token-file FILE";
    if (!problem.empty()) *error += "; " + problem;
    return false;
  }
  if (nlohmann::json::accept(*json)) return true;
  *error = "the agent's answer is no JSON";
  return false;
}

}  // namespace foreshock::cli
