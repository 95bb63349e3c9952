// Reads, writes and locks files in a directory that may belong to a hostile user, who may replace its files
// by links or FIFOs at any time. So a file is opened relative to the open directory and then checked.
#include "agent/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace foreshock {

bool is_shortage(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM; }

namespace {

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
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

// Returns the sorted names of the entries for which keep(entry) is true, among the first kMostEntries entries
// and without those that begin with a dot. *was_read (if not null) becomes false if a shortage of descriptors
// or memory stopped the reading, else true. After any other error the names read so far are returned.
template <class Keep>
std::vector<std::string> sorted_names(int directory, bool* was_read, const Keep& keep) {
  std::vector<std::string> names;
  // Opens the directory again, because a duplicated descriptor would share the read position.
  const int reopened = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* stream = reopened >= 0 ? fdopendir(reopened) : nullptr;
  bool could_read = stream != nullptr || !is_shortage(errno);
  if (stream == nullptr && reopened >= 0) close(reopened);
  for (size_t seen = 0; stream != nullptr && seen < Directory::kMostEntries; ++seen) {
    errno = 0;
    const dirent* entry = readdir(stream);
    could_read = entry != nullptr || !is_shortage(errno);
    if (entry == nullptr) break;
    if (entry->d_name[0] != '.' && keep(*entry)) names.push_back(entry->d_name);
  }
  if (stream != nullptr) closedir(stream);
  if (was_read != nullptr) *was_read = could_read;
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

bool replace_file(int directory, const std::string& name, std::string_view bytes,
                  const std::function<bool(int file)>& prepare) {
  const std::string unfinished = name + kUnfinishedSuffix;
  unlinkat(directory, unfinished.c_str(), 0);  // a killed agent may have left this file
  // O_EXCL: opening fails if another process has created the file since unlinkat().
  const int file = ::openat(directory, unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | kSafeFlags, 0600);
  if (file < 0) return false;
  const bool is_written = (prepare == nullptr || prepare(file)) && write_all(file, bytes);
  int failure = errno;  // the reason of the first failure, if any: of prepare(), write, close or rename
  // A network file system may report only at close() that it is full.
  const bool is_closed = close(file) == 0;
  if (is_written) failure = errno;  // of close(); used only if close() failed
  if (is_written && is_closed) {
    if (renameat(directory, unfinished.c_str(), directory, name.c_str()) == 0) return true;
    failure = errno;
  }
  unlinkat(directory, unfinished.c_str(), 0);
  errno = failure;
  return false;
}

Directory::Directory(std::string path, int descriptor, uid_t owner)
    : path_(std::move(path)), descriptor_(descriptor), owner_(owner) {}

Directory::~Directory() { close(descriptor_); }

std::unique_ptr<Directory> Directory::open(const std::string& path, std::string* why) {
  return open_at(AT_FDCWD, path, path, why);
}

std::unique_ptr<Directory> Directory::open_inside(const std::string& name, std::string* why) const {
  if (!is_plain_name(name)) {
    *why = "not a file name";
    return nullptr;
  }
  return open_at(descriptor_, name, path_ + "/" + name, why);
}

std::unique_ptr<Directory> Directory::open_again(std::string* why) const {
  return open_at(descriptor_, ".", path_, why);
}

std::unique_ptr<Directory> Directory::open_at(int parent, const std::string& name, const std::string& path,
                                              std::string* why) {
  const int descriptor = ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | kSafeFlags);
  struct stat status = {};
  if (descriptor >= 0 && fstat(descriptor, &status) == 0)
    return std::unique_ptr<Directory>(new Directory(path, descriptor, status.st_uid));
  *why = std::strerror(errno);
  if (descriptor >= 0) close(descriptor);
  return nullptr;
}

struct stat Directory::status() const {
  struct stat status = {};
  fstat(descriptor_, &status);
  return status;
}

std::vector<std::string> Directory::names(const std::string& begin, const std::string& end,
                                          bool* was_read) const {
  return sorted_names(descriptor_, was_read, [&](const dirent& entry) {
    const std::string_view name = entry.d_name;
    return name.size() > begin.size() + end.size() && name.starts_with(begin) && name.ends_with(end);
  });
}

std::vector<std::string> Directory::directories(bool* was_read) const {
  return sorted_names(descriptor_, was_read, [](const dirent& entry) {
    // Some file systems report DT_UNKNOWN; opening the entry then shows whether it is a directory.
    return entry.d_type == DT_DIR || entry.d_type == DT_UNKNOWN;
  });
}

int Directory::open_file(const std::string& name, int flags) const {
  if (!is_plain_name(name)) {
    errno = EINVAL;
    return -1;
  }
  const int file = ::openat(descriptor_, name.c_str(), flags | kSafeFlags, 0600);
  if (file < 0) return -1;
  struct stat status = {};
  const bool is_trusted_directory = owner_ == 0 || owner_ == geteuid();  // its files may belong to anyone
  // A file with a second link may be one that the hostile user cannot open himself, and has linked here.
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink <= 1 &&
      (status.st_uid == owner_ || status.st_uid == geteuid() || is_trusted_directory))
    return file;
  close(file);
  errno = EPERM;
  return -1;
}

std::optional<struct stat> Directory::status_of(const std::string& name) const {
  struct stat status = {};
  if (!is_plain_name(name) || fstatat(descriptor_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
    return std::nullopt;
  return status;
}

bool Directory::has(const std::string& name) const { return status_of(name).has_value(); }

std::optional<std::string> Directory::read(const std::string& name, size_t most) const {
  const int file = open_file(name, O_RDONLY);
  if (file < 0) return std::nullopt;
  std::string text;  // grows with the file: memory may be limited (ulimit -v), and `most` large
  char block[16384];
  int error = 0;
  while (error == 0 && text.size() <= most) {
    const ssize_t got = ::read(file, block, sizeof block);
    if (got == 0) break;  // the end of the file
    if (got > 0)
      text.append(block, static_cast<size_t>(got));
    else if (errno != EINTR)
      error = errno;
  }
  close(file);
  if (text.size() > most) error = EFBIG;
  if (error != 0) {
    errno = error;
    return std::nullopt;
  }
  return text;
}

// Makes a file that this process wrote accessible to the directory's owner. Returns false on failure.
bool Directory::give_to_owner(int file) const {
  if (owner_ == geteuid()) return true;
  if (geteuid() == 0) return fchown(file, owner_, static_cast<gid_t>(-1)) == 0;
  // `foreshock run` gives a directory that it shares with a service the set-group-id bit, and closes it to
  // all users but its owner and this process's group. The file belongs to this process's user. If the
  // directory's owner is not in the file's group, the permissions for others apply to him.
  return (status().st_mode & S_ISGID) == 0 || fchmod(file, 0666) == 0;
}

bool Directory::write(const std::string& name, const std::string& text, mode_t mode) const {
  if (!is_plain_name(name)) return false;
  return replace_file(descriptor_, name, text, [&](int file) {
    return (mode == 0600 || fchmod(file, mode) == 0) && give_to_owner(file);  // the new file has mode 0600
  });
}

void Directory::remove(const std::string& name) const {
  if (is_plain_name(name)) unlinkat(descriptor_, name.c_str(), 0);
}

int Directory::lock(const std::string& name, int operation) const {
  const bool is_new = !has(name);
  const int file = open_file(name, O_RDWR | O_CREAT);
  if (file < 0) return -1;
  if (is_new) give_to_owner(file);  // on failure the lock works, but the owner cannot open the file
  if (flock(file, operation | LOCK_NB) == 0) return file;
  const int error = errno;
  close(file);
  errno = error;
  return -1;
}

// Tries to lock the file. Closing it releases the lock.
bool Directory::is_locked(const std::string& name) const {
  const int file = open_file(name, O_RDONLY);
  if (file < 0) return is_shortage(errno);  // the check is not possible now, so the file counts as locked
  const bool locked = flock(file, LOCK_EX | LOCK_NB) != 0;
  close(file);
  return locked;
}

}  // namespace foreshock
