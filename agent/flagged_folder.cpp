#include "agent/flagged_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string_view>

#include "agent/flagged_file.h"

namespace foreshock {
namespace {

constexpr std::string_view kPart = ".part";  // the end of a name while the file is written

struct Usage {
  uint64_t files = 0, bytes = 0;
};

// Counts the slices; takes away what an agent that was killed has left half-written.
bool look(int folder, Usage* usage) {
  const int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* list = again >= 0 ? fdopendir(again) : nullptr;
  if (list == nullptr) {
    if (again >= 0) close(again);
    return false;
  }
  while (const dirent* entry = readdir(list)) {
    const std::string_view name = entry->d_name;
    const bool is_part = name.ends_with(std::string(kFlaggedSuffix) + std::string(kPart));
    struct stat status = {};
    if ((!is_part && !name.ends_with(kFlaggedSuffix)) ||
        fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    if (is_part && time(nullptr) - status.st_mtime > FlaggedFolder::kAbandonedSeconds &&
        unlinkat(folder, entry->d_name, 0) == 0)
      continue;
    ++usage->files;
    usage->bytes += static_cast<uint64_t>(status.st_size);
  }
  closedir(list);
  return true;
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool write_file(int folder, const std::string& name, const std::string& bytes) {
  const std::string part = name + std::string(kPart);
  unlinkat(folder, part.c_str(), 0);
  const int file = openat(folder, part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return false;
  // A network disk may only say at close() that it is full.
  const bool is_written = write_all(file, bytes);
  const int failure = errno;
  if (close(file) == 0 && is_written && renameat(folder, part.c_str(), folder, name.c_str()) == 0)
    return true;
  if (!is_written) errno = failure;
  const int told = errno;
  unlinkat(folder, part.c_str(), 0);
  errno = told;
  return false;
}

int open_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return -1;
  return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

}  // namespace

FlaggedFolder::Outcome FlaggedFolder::write(const std::string& name, const std::string& bytes,
                                            std::string* error) const {
  const int folder = open_folder(path_);
  Usage usage;
  Outcome outcome = Outcome::kFailed;
  if (folder >= 0 && look(folder, &usage)) {
    const bool fits =
        usage.files < kMostFiles && usage.bytes <= most_bytes_ && bytes.size() <= most_bytes_ - usage.bytes;
    outcome = !fits ? Outcome::kFull : write_file(folder, name, bytes) ? Outcome::kWritten : Outcome::kFailed;
  }
  if (outcome == Outcome::kFailed) *error = path_ + ": " + std::strerror(errno);
  if (outcome == Outcome::kFull)
    *error = path_ + " holds " + std::to_string(usage.files) + " slices of " + std::to_string(usage.bytes) +
             " bytes; no more are kept there";
  if (folder >= 0) close(folder);
  return outcome;
}

}  // namespace foreshock
