// A file that exists in memory only, for readers that take a path.
#ifndef FORESHOCK_TESTS_FUZZ_MEMORY_FILE_H_
#define FORESHOCK_TESTS_FUZZ_MEMORY_FILE_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

class MemoryFile {
 public:
  MemoryFile() : file_(memfd_create("fuzz", MFD_CLOEXEC)) {}

  // The path of a file that holds these bytes.
  std::string path_of(const uint8_t* data, size_t size) const {
    if (file_ < 0 || ftruncate(file_, 0) != 0 || pwrite(file_, data, size, 0) != static_cast<ssize_t>(size))
      std::abort();
    return "/proc/self/fd/" + std::to_string(file_);
  }

 private:
  int file_;
};

#endif  // FORESHOCK_TESTS_FUZZ_MEMORY_FILE_H_
