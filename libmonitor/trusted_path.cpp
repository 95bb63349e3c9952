// Walks a path component by component and examines owner and mode of each, through symbolic links.
#include "libmonitor/trusted_path.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace foreshock {
namespace {

constexpr int kMostLinks = 40;  // as many as the kernel follows

// Like lstat(), which is a symbol only of glibc 2.33 and later. Returns 0 or an errno.
int examine(const char* path, struct statx* status) {
  const long result =
      syscall(SYS_statx, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_MODE | STATX_UID, status);
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

Distrust distrust_of(const struct statx& status) {
  if (!is_trusted_owner(status.stx_uid)) return Distrust::kOwner;
  if (S_ISLNK(status.stx_mode)) return Distrust::kNone;  // the mode of a link has no meaning
  const bool is_sticky = S_ISDIR(status.stx_mode) && (status.stx_mode & S_ISVTX) != 0;
  return (status.stx_mode & (S_IWGRP | S_IWOTH)) != 0 && !is_sticky ? Distrust::kWritable : Distrust::kNone;
}

// The part of the path that is examined (result->where), and the part that remains.
class Walk {
 public:
  explicit Walk(PathTrust* result) : result_(*result) {}

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
    fail(distrust_of(status));
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
  char rest_[kCapacity] = "";
  int links_ = 0;
  bool is_missing_ = false;
};

}  // namespace

PathTrust path_trust(const char* path) {
  PathTrust result;
  Walk walk(&result);
  if (walk.start(path))
    walk.run();
  else
    result.distrust = Distrust::kUnreadable;
  return result;
}

}  // namespace foreshock
