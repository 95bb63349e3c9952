// Reading and writing at a place in a file, whole or not at all.
#ifndef FORESHOCK_SEGMENT_PREAD_H_
#define FORESHOCK_SEGMENT_PREAD_H_

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace foreshock::segment {

inline bool read_exactly(int fd, void* to, size_t bytes, uint64_t offset) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(fd, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

template <class T>
void write_field(int fd, const T& value, uint64_t offset) {
  // A failed store is seen at the next read of the same field; there is nothing better to do with it here.
  while (pwrite(fd, &value, sizeof value, static_cast<off_t>(offset)) < 0 && errno == EINTR) {
  }
}

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_PREAD_H_
