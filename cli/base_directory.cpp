#include "cli/base_directory.h"

#include <errno.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "libmonitor/options.h"

namespace foreshock::cli {
namespace {

bool is_on_tmpfs(const std::string& path) {
  struct statfs info;
  return statfs(path.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC;
}

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

// Ours, and closed to others; to the group as well, unless the set-group-id bit says that it is a service's.
bool is_private(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) return false;
  return (info.st_mode & 077) == 0 || ((info.st_mode & S_ISGID) != 0 && (info.st_mode & 07) == 0);
}

std::string named_for_user(const std::string& parent) {
  return parent + "/foreshock-" + std::to_string(geteuid());
}

}  // namespace

std::vector<std::string> base_directory_candidates() {
  std::string given = option_value(OptionId::kBaseDirectory);
  while (given.size() > 1 && given.back() == '/') given.pop_back();
  if (!given.empty()) {
    struct stat info;
    const bool is_ours_to_make = stat(given.c_str(), &info) != 0;
    return {is_private(given) || is_ours_to_make ? given : named_for_user(given)};
  }
  std::vector<std::string> candidates = {named_for_user("/dev/shm")};
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime == '/') {
    candidates.push_back(std::string(runtime) + "/foreshock");
  }
  return candidates;
}

std::string prepare_base_directory(const std::string& path) {
  if (path.empty() || path[0] != '/') return "'" + path + "' is not an absolute path";
  if (!is_on_tmpfs(parent_of(path)) && !is_on_tmpfs(path)) return path + " is not on tmpfs";
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return path + ": " + std::strerror(errno);
  if (!is_private(path))
    return path + " is not a directory of this user with mode 0700 (or 2770, shared with a service)";
  if (access(path.c_str(), W_OK | X_OK) != 0) return path + ": " + std::strerror(errno);
  if (!is_on_tmpfs(path)) return path + " is not on tmpfs";
  if (free_bytes(path) < kLeastFreeBytes) return "no space left on the tmpfs of " + path;
  return "";
}

BaseDirectory choose_base_directory() {
  BaseDirectory chosen;
  for (const std::string& candidate : base_directory_candidates()) {
    const std::string reason = prepare_base_directory(candidate);
    if (reason.empty()) return {candidate, ""};
    chosen.problem += (chosen.problem.empty() ? "" : "; ") + reason;
  }
  chosen.problem += "; set FORESHOCK_DIR to a directory on a tmpfs with room";
  return chosen;
}

uint64_t free_bytes(const std::string& path) {
  struct statvfs info;
  if (statvfs(path.c_str(), &info) != 0) return 0;
  // A tmpfs mounted without a size limit reports no blocks at all.
  if (info.f_blocks == 0) return UINT64_MAX;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace foreshock::cli
