#include "segment/rank_lock.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace foreshock::segment {
namespace {

bool is_locked_by_other(const char* path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  const bool locked = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  close(fd);
  return locked;
}

bool has_live_segment(const char* directory, int rank) {
  DIR* files = opendir(directory);
  if (files == nullptr) return false;
  bool is_live = false;
  while (const dirent* entry = readdir(files)) {
    int its_rank = 0, length = 0;
    unsigned long long nonce = 0;
    if (std::sscanf(entry->d_name, "%d-%16llx.seg%n", &its_rank, &nonce, &length) != 2) continue;
    if (length == 0 || entry->d_name[length] != '\0' || its_rank != rank) continue;
    char path[512];
    if (std::snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) >= int(sizeof path)) continue;
    is_live |= is_locked_by_other(path);
  }
  closedir(files);
  return is_live;
}

// Not fstat(), which is a symbol of glibc 2.33 and later.
bool has_name(int fd) {
  struct statx status = {};
  return syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_NLINK, &status) != 0 || status.stx_nlink > 0;
}

}  // namespace

bool lock_whole(int fd) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_SETLK, &lock) == 0;
}

RankLock::~RankLock() {
  if (fd_ < 0) return;
  unlink(path_);  // while it is locked: who has opened it too finds it without a name
  close(fd_);
}

int RankLock::lock() {
  fd_ = open(path_, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd_ < 0) return errno;
  int error = lock_whole(fd_) ? 0 : errno == EAGAIN || errno == EACCES ? EBUSY : errno;
  if (error == 0 && !has_name(fd_)) error = ESTALE;
  if (error == 0) return 0;
  close(fd_);
  fd_ = -1;
  return error;
}

int RankLock::take(const char* directory, int rank) {
  constexpr int kTries = 100;  // each finds that another one has just ended with it
  if (std::snprintf(path_, sizeof path_, "%s/%d.rank", directory, rank) >= int(sizeof path_))
    return ENAMETOOLONG;
  int error = ESTALE;
  for (int tried = 0; tried < kTries && error == ESTALE; ++tried) error = lock();
  if (error != 0) return error == ESTALE ? EBUSY : error;
  return has_live_segment(directory, rank) ? EBUSY : 0;
}

}  // namespace foreshock::segment
