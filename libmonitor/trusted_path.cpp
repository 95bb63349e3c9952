// Walks a path component by component and examines owner and mode of each, through symbolic links.
#include "libmonitor/trusted_path.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace foreshock {
namespace {

constexpr int kMostLinks = 40;  // as many as the kernel follows

// Like lstat(), which is a symbol only of glibc 2.33 and later. Returns 0 or an errno.
int examine(const char* path, struct statx* status) {
  const long result = syscall(SYS_statx, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW,
                              STATX_TYPE | STATX_MODE | STATX_UID | STATX_GID, status);
  return result == 0 ? 0 : errno;
}

// Whether this process is in a user namespace that does not map all users: files of users that are not mapped
// then seem to belong to the overflow user. The map of the first namespace is "0 0 4294967295".
bool is_user_namespace() {
  char text[128] = "";
  const int fd = open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  unsigned long inside = 0, outside = 0, count = 0;
  return length > 0 && (std::sscanf(text, "%lu %lu %lu", &inside, &outside, &count) != 3 || inside != 0 ||
                        outside != 0 || count != 0xffffffffu);
}

constexpr uid_t kOverflowUser = 65534;  // the default of /proc/sys/kernel/overflowuid

bool is_trusted_owner(uid_t owner) {
  return owner == 0 || owner == geteuid() || (owner == kOverflowUser && is_user_namespace());
}

// The fields of a line of /etc/passwd or /etc/group, which are separated by colons.
struct AccountLine {
  char text[1024];
  char* fields[4];  // of both files: the name is 0, and the number of the user or group 2

  bool split() {
    char* rest = text;
    for (char*& field : fields) {
      field = rest;
      if (rest == nullptr) return false;
      char* colon = std::strchr(rest, ':');
      if (colon != nullptr) *colon = '\0';
      rest = colon != nullptr ? colon + 1 : nullptr;
    }
    return true;
  }
  bool has_number(size_t field, uint64_t number) const {
    char digits[24];
    std::snprintf(digits, sizeof digits, "%llu", static_cast<unsigned long long>(number));
    return std::strcmp(fields[field], digits) == 0;
  }
};

// Calls `accept` for each line of the file, until it returns false; the last line may lack its end. Returns
// false then, and if the file cannot be read or has a line that is too long.
template <class Accept>
bool all_lines(const char* path, Accept accept) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  AccountLine line;
  size_t length = 0;
  char block[4096];
  ssize_t got = 0;
  bool is_accepted = true;
  const auto end_line = [&] {
    line.text[length] = '\0';
    length = 0;
    return !line.split() || accept(line);
  };
  while (is_accepted && (got = read(fd, block, sizeof block)) > 0)
    for (ssize_t at = 0; is_accepted && at < got; ++at) {
      if (block[at] != '\n') {
        is_accepted = length + 1 < sizeof line.text;
        line.text[length++] = block[at];
        continue;
      }
      is_accepted = end_line();
    }
  close(fd);
  return is_accepted && got == 0 && (length == 0 || end_line());
}

// Whether `owner` is the only user whose group this is, and the only member that is added to it.
bool is_private_group(gid_t group, uid_t owner, const AccountFiles& accounts) {
  char name[256] = "";
  const bool has_no_other_user = all_lines(accounts.users, [&](const AccountLine& user) {
    if (!user.has_number(3, group)) return true;
    std::snprintf(name, sizeof name, "%s", user.fields[0]);
    return user.has_number(2, owner);
  });
  bool is_listed = false;
  return has_no_other_user && name[0] != '\0' &&
         all_lines(accounts.groups,
                   [&](const AccountLine& line) {
                     if (!line.has_number(2, group)) return true;
                     is_listed = true;
                     return line.fields[3][0] == '\0' || std::strcmp(line.fields[3], name) == 0;
                   }) &&
         is_listed;
}

Distrust distrust_of(const struct statx& status, const AccountFiles& accounts) {
  if (!is_trusted_owner(status.stx_uid)) return Distrust::kOwner;
  if (S_ISLNK(status.stx_mode)) return Distrust::kNone;  // the mode of a link has no meaning
  if (S_ISDIR(status.stx_mode) && (status.stx_mode & S_ISVTX) != 0) return Distrust::kNone;
  if ((status.stx_mode & S_IWOTH) != 0) return Distrust::kWritable;
  const bool is_closed = (status.stx_mode & S_IWGRP) == 0;
  return is_closed || is_private_group(status.stx_gid, status.stx_uid, accounts) ? Distrust::kNone
                                                                                 : Distrust::kWritable;
}

// The part of the path that is examined (result->where), and the part that remains.
class Walk {
 public:
  Walk(PathTrust* result, const AccountFiles& accounts) : result_(*result), accounts_(accounts) {}

  // Returns false if the path is too long.
  bool start(const char* path) {
    size_t length = 0;
    if (path[0] != '/') {
      if (getcwd(rest_, sizeof rest_) == nullptr) return false;
      length = std::strlen(rest_);
      rest_[length++] = '/';
    }
    const int added = std::snprintf(rest_ + length, sizeof rest_ - length, "%s", path);
    return added >= 0 && length + static_cast<size_t>(added) < sizeof rest_;
  }

  void run() {
    step();  // the root
    while (result_.distrust == Distrust::kNone && !is_missing_ && take_component()) step();
  }

 private:
  static constexpr size_t kCapacity = sizeof(PathTrust::where);

  void fail(Distrust distrust) { result_.distrust = distrust; }

  // Moves the next component from rest_ to the end of result_.where. Returns false if none is left.
  bool take_component() {
    char* begin = rest_ + std::strspn(rest_, "/");
    const size_t length = std::strcspn(begin, "/"), before = std::strlen(result_.where);
    if (length == 0) return false;
    if (before + 1 + length >= kCapacity) {
      fail(Distrust::kUnreadable);
      return true;
    }
    result_.where[before] = '/';
    std::memcpy(result_.where + before + 1, begin, length);
    result_.where[before + 1 + length] = '\0';
    std::memmove(rest_, begin + length, std::strlen(begin + length) + 1);
    return true;
  }

  // Examines result_.where, and follows it if it is a link.
  void step() {
    if (result_.distrust != Distrust::kNone) return;
    const char* name = std::strrchr(result_.where, '/');
    const bool is_parent = name != nullptr && std::strcmp(name, "/..") == 0;
    if (is_parent || (name != nullptr && std::strcmp(name, "/.") == 0)) {
      // The folders on the way have been examined and links are resolved, so ".." only removes a component.
      remove_component();
      if (is_parent) remove_component();
      return;
    }
    struct statx status = {};
    const int error = examine(result_.where[0] == '\0' ? "/" : result_.where, &status);
    is_missing_ = error == ENOENT || error == ENOTDIR;
    if (is_missing_) return;
    if (error != 0) return fail(Distrust::kUnreadable);
    result_.owner = status.stx_uid;
    fail(distrust_of(status, accounts_));
    if (result_.distrust == Distrust::kNone && S_ISLNK(status.stx_mode)) follow_link();
  }

  void remove_component() {
    if (char* slash = std::strrchr(result_.where, '/')) *slash = '\0';
  }

  // Puts the target of the link before the rest of the path.
  void follow_link() {
    char target[kCapacity];
    const ssize_t got = readlink(result_.where, target, sizeof target);
    const size_t length = got > 0 ? static_cast<size_t>(got) : 0, after = std::strlen(rest_);
    if (length == 0 || ++links_ > kMostLinks || length + 1 + after >= sizeof rest_)
      return fail(Distrust::kUnreadable);
    std::memmove(rest_ + length + 1, rest_, after + 1);
    std::memcpy(rest_, target, length);
    rest_[length] = '/';
    if (target[0] == '/')
      result_.where[0] = '\0';
    else
      remove_component();
  }

  PathTrust& result_;
  const AccountFiles& accounts_;
  char rest_[kCapacity] = "";
  int links_ = 0;
  bool is_missing_ = false;
};

}  // namespace

PathTrust path_trust(const char* path, const AccountFiles& accounts) {
  PathTrust result;
  Walk walk(&result, accounts);
  if (walk.start(path))
    walk.run();
  else
    result.distrust = Distrust::kUnreadable;
  return result;
}

}  // namespace foreshock
