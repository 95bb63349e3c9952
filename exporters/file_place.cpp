// Walks a path component by component, with descriptors that open nothing (O_PATH).
#include "exporters/file_place.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

namespace foreshock {
namespace {

constexpr int kMostLinks = 40;  // as many as the kernel follows

// In a user namespace that does not map all users, files of root outside of it belong to the overflow user.
bool is_overflow_user_root() {
  uint64_t inside = 1, outside = 1, count = 0;
  std::ifstream("/proc/self/uid_map") >> inside >> outside >> count;
  return inside != 0 || outside != 0 || count != UINT32_MAX;
}

bool is_trusted(uid_t owner) {
  constexpr uid_t kOverflowUser = 65534;  // the default of /proc/sys/kernel/overflowuid
  return owner == 0 || owner == geteuid() || (owner == kOverflowUser && is_overflow_user_root());
}

bool may_be_followed(const struct stat& link, int folder) {
  struct stat status = {};
  return is_trusted(link.st_uid) || (fstat(folder, &status) == 0 && is_trusted(status.st_uid) &&
                                     (status.st_mode & (S_IWGRP | S_IWOTH)) == 0);
}

bool is_in_procfs(int folder) {
  struct statfs info;
  return fstatfs(folder, &info) == 0 && info.f_type == PROC_SUPER_MAGIC;
}

// Puts the components of `path` on a stack, the first one on top. A path that names a folder ends with ".".
void push_components(std::string_view path, std::vector<std::string>* stack) {
  std::vector<std::string> components;
  while (!path.empty()) {
    const std::string_view component = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), component.size() + 1));
    if (!component.empty() && component != ".") components.emplace_back(component);
    const bool names_folder = component.empty() || component == "." || component == "..";
    if (path.empty() && (names_folder || path.data()[-1] == '/')) components.emplace_back(".");
  }
  stack->insert(stack->end(), components.rbegin(), components.rend());
}

}  // namespace

FilePlace::FilePlace(const std::string& path) { walk(path); }

FilePlace::~FilePlace() {
  if (folder_ >= 0) close(folder_);
}

// Adds a component to path_, which has no links, so that ".." removes the component before it.
void FilePlace::append(const std::string& component) {
  const size_t slash = path_.rfind('/'), begin = slash == path_.npos ? 0 : slash + 1;
  const bool has_last = begin < path_.size() && path_.substr(begin) != "..";
  if (component == "..") {
    if (path_ == "/") return;
    if (has_last) return path_.resize(begin > 1 ? begin - 1 : begin);  // 1: "/" stays
  }
  if (!path_.empty() && path_ != "/") path_ += '/';
  if (component == "." && path_.empty()) path_ = "./";
  if (component != ".") path_ += component;
}

// Opens the folder at which a path begins.
void FilePlace::begin_at(const std::string& path) {
  if (folder_ >= 0) close(folder_);
  path_.clear();
  if (path.starts_with('/')) path_ += '/';
  folder_ = ::open(path_.empty() ? "." : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0) error_ = errno;
}

void FilePlace::walk(const std::string& path) {
  std::vector<std::string> rest;
  push_components(path, &rest);
  begin_at(path);
  if (rest.empty()) error_ = ENOENT;
  for (int links = 0; !rest.empty() && error_ == 0;) {
    name_ = rest.back();
    rest.pop_back();
    if (name_ == "." && rest.empty()) return append(name_);
    if (name_ == ".") continue;  // at the end of the target of a link
    int entry = openat(folder_, name_.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat status = {};
    if (entry < 0 || fstat(entry, &status) != 0) {
      if (!rest.empty() || errno != ENOENT) error_ = errno;  // only the file itself may be missing
      status.st_mode = 0;
    }
    const bool is_link = S_ISLNK(status.st_mode), is_untrusted = is_link && !may_be_followed(status, folder_);
    if (is_link && !is_untrusted && !is_in_procfs(folder_)) {
      std::string target(PATH_MAX, '\0');
      const ssize_t length = readlinkat(entry, "", target.data(), target.size());
      target.resize(static_cast<size_t>(std::max<ssize_t>(length, 0)));
      close(entry);
      push_components(target, &rest);
      if (target.starts_with('/')) begin_at(target);
      if (++links <= kMostLinks && !target.empty()) continue;
      refusal_ = path + " is a link that leads nowhere: choose another place";
      return;
    }
    append(name_);
    if (is_untrusted)
      refusal_ = path_ + " is a link of another user in a folder that others may write; name its target";
    if (is_link && !is_untrusted && !rest.empty()) {  // only the kernel can follow a link of procfs
      close(entry);
      entry = openat(folder_, name_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
      if (entry < 0) error_ = errno;
    }
    is_of_kernel_ = is_link && !is_untrusted && rest.empty();
    if (!rest.empty() && !is_untrusted && entry >= 0) std::swap(folder_, entry);
    if (entry >= 0) close(entry);
    if (is_untrusted) return;
  }
  if (error_ != 0 && folder_ >= 0) {  // the last folder that was found is not that of the file
    close(folder_);
    folder_ = -1;
  }
  for (; !rest.empty(); rest.pop_back()) append(rest.back());  // behind the error
}

int FilePlace::open(int flags, mode_t mode) const {
  if (error_ != 0 || !refusal_.empty()) {
    errno = error_ != 0 ? error_ : ELOOP;
    return -1;
  }
  return openat(folder_, name_.c_str(), flags | O_CLOEXEC | (is_of_kernel_ ? 0 : O_NOFOLLOW), mode);
}

}  // namespace foreshock
