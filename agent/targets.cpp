#include "agent/targets.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

// Of a file in a directory that several hosts may share.
std::string end_of_name() { return std::string(".").append(host_name()).append(".json"); }

std::string lock_name(const std::string& name) { return std::string(".").append(name).append(".lock"); }

// A list of targets as targets_json() writes them.
bool is_of_an_agent(const std::string& text) {
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, false);
  return list.is_array() && std::all_of(list.begin(), list.end(), [](const nlohmann::json& each) {
           return each.is_object() && each.size() == 2 && each.contains("targets") && each.contains("labels");
         });
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

TargetFile::TargetFile(const std::string& path, const std::string& run) : path_(path) {
  std::error_code error;
  is_in_directory_ = std::filesystem::is_directory(path, error);
  if (is_in_directory_) path_ = (std::filesystem::path(path) / (run + end_of_name())).string();
}

TargetFile::~TargetFile() {
  if (lock_ >= 0) close(lock_);
}

// The file is exchanged as a whole, so its lock is a file beside it, which stays. Where there can be none,
// nobody is kept from writing.
bool TargetFile::is_ours() {
  if (lock_ >= 0) return true;
  const size_t slash = path_.rfind('/');
  const size_t name_at = slash == std::string::npos ? 0 : slash + 1;
  const std::string name = path_.substr(0, name_at) + lock_name(path_.substr(name_at));
  int lock = open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (lock < 0) lock = open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);  // another user's
  if (lock < 0) return true;
  if (flock(lock, LOCK_EX | LOCK_NB) == 0) {
    lock_ = lock;
    return true;
  }
  const bool is_kept = errno == EWOULDBLOCK;
  close(lock);
  return !is_kept;
}

std::string TargetFile::write(const std::string& text) {
  namespace fs = std::filesystem;
  if (!is_ours())
    return path_ +
           " is kept by another agent: Prometheus will not find this one there; name a directory, and each "
           "run "
           "has a file of its own in it";
  std::error_code error;
  std::string why;
  const fs::path folder = fs::canonical(fs::absolute(path_, error).parent_path(), error);
  const auto directory = error ? nullptr : Directory::open(folder, &why);
  const std::string name = fs::path(path_).filename();
  if (directory != nullptr && directory->read(name, kMostBytes) == text) return "";
  // Prometheus is another user.
  if (directory != nullptr && directory->write(name, text, 0644)) return "";
  return path_ + " cannot be written: Prometheus will not find this agent there";
}

void TargetFile::remove() {
  if (is_ours()) unlink(path_.c_str());
}

// A lock ends with its agent, however that ends, and with the machine. Its file stays: who removed it could
// take it from an agent that has just opened it.
void TargetFile::remove_abandoned() const {
  if (!is_in_directory_) return;
  const std::filesystem::path own = path_;
  std::string why;
  std::error_code error;
  const auto directory = Directory::open(std::filesystem::canonical(own.parent_path(), error), &why);
  if (directory == nullptr) return;
  for (const std::string& name : directory->names("", end_of_name())) {
    if (name == own.filename() || !directory->has(lock_name(name))) continue;
    const std::optional<std::string> text = directory->read(name, kMostBytes);
    if (!text || !is_of_an_agent(*text)) continue;
    const int lock = directory->open_file(lock_name(name), O_RDONLY);
    if (lock < 0) continue;
    if (flock(lock, LOCK_EX | LOCK_NB) == 0) directory->remove(name);
    close(lock);
  }
}

}  // namespace foreshock
