#include "agent/targets.h"

#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "agent/directory.h"

namespace foreshock {
namespace {

constexpr size_t kMostBytes = 1 << 20;

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

std::string place_of(const Target& target) {
  std::string host = target.address;
  if (host == "0.0.0.0" || host == "::") host = host_name();
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  return host + ":" + std::to_string(target.port);
}

}  // namespace

std::string targets_json(const std::vector<Target>& targets) {
  nlohmann::json list = nlohmann::json::array();
  for (const Target& target : targets) {
    if (target.port == 0) continue;
    nlohmann::json labels = nlohmann::json::object();
    if (!target.run.empty()) labels["__meta_foreshock_run"] = target.run;
    list.push_back({{"targets", {place_of(target)}}, {"labels", labels}});
  }
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool write_targets(const std::string& path, const std::string& text) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::string why;
  const fs::path folder = fs::canonical(fs::absolute(path, error).parent_path(), error);
  const auto directory = error ? nullptr : Directory::open(folder, &why);
  const std::string name = fs::path(path).filename();
  if (directory == nullptr) return false;
  if (directory->read(name, kMostBytes) == text) return true;
  return directory->write(name, text, 0644);  // Prometheus is another user
}

}  // namespace foreshock
