#include "cli/exit_exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/launcher_id.h"
#include "cli/run_directory.h"

namespace foreshock::cli {
namespace {

constexpr int kTimeoutMs = 30000;
constexpr int kPollMs = 50;
constexpr int kServiceTimeoutMs = 3000;  // it looks for new runs every second
constexpr off_t kExitBytes = 4096;       // a page; the text has 60 bytes
constexpr off_t kSpareBytes =
    256 << 10;  // a summary has 3 KiB a rank: those of a large node, attempts included

bool is_stop_signal(int signal) { return signal == SIGTERM || signal == SIGINT || signal == SIGHUP; }

int create_reserved(const std::string& path, off_t bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return errno;
  if (is_shared_with_group(std::filesystem::path(path).parent_path())) fchmod(fd, 0660);
  const int error = posix_fallocate(fd, 0, bytes);
  close(fd);
  return error;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

std::string ExitExchange::reserve(const std::string& directory) {
  directory_ = directory;
  const std::string launcher = std::to_string(launcher_id());
  exit_ = directory + "/exit." + launcher + ".json";
  summary_ = directory + "/summary." + launcher + ".json";
  // In this order, since an exit file without a summary is one to be answered.
  unlink(exit_.c_str());
  unlink(summary_.c_str());
  spare_ = directory + "/spare." + launcher;
  for (const auto& [path, bytes] : {std::pair(exit_ + ".new", kExitBytes), std::pair(spare_, kSpareBytes)}) {
    if (const int error = create_reserved(path, bytes); error != 0) return path + ": " + std::strerror(error);
  }
  return "";
}

void ExitExchange::tell(const ExitStatus& status, bool was_asked_to_stop) const {
  const bool stopped = was_asked_to_stop || is_stop_signal(status.signal) ||
                       (status.code > 128 && is_stop_signal(status.code - 128));
  const char* state = stopped ? "preempted" : status.code == 0 ? "finished" : "failed";
  const nlohmann::json json = {{"status", status.code}, {"signal", status.signal}, {"state", state}};
  const std::string text = json.dump() + "\n", path = exit_ + ".new";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  unlink(spare_.c_str());  // its place is the summary's
  // Into the space that is there already; in one rename, so that the agent never reads half a file.
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ftruncate(fd, static_cast<off_t>(text.size())) == 0;
  close(fd);
  if (written) rename(path.c_str(), exit_.c_str());
}

ExitExchange::Answer ExitExchange::wait(SignalPasser* signals, AgentKeeper* keeper) const {
  keeper->wake();
  for (int waited = 0; waited < kTimeoutMs; waited += kPollMs) {
    if (access(summary_.c_str(), R_OK) == 0) return {text_of(summary_), ""};
    if (access(exit_.c_str(), F_OK) != 0) return {"", directory_ + " is gone, or cannot be written any more"};
    if (keeper->has_failed()) return {"", "the agent ended early (" + keeper->last_words() + ")"};
    if (keeper->is_service() && waited >= kServiceTimeoutMs && !is_locked(directory_ + "/agent.lock"))
      return {"", keeper->last_words()};
    keeper->tick();
    if (signals->interrupted_within(kPollMs)) return {"", "interrupted"};
  }
  return {"", "the agent did not answer"};
}

}  // namespace foreshock::cli
