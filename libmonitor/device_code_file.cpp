#include "libmonitor/device_code_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "kernels/sums.h"

namespace foreshock {
namespace {

// A trainer may have a timer whose signals come all the time, and then nothing is read for good.
constexpr int kMostInterruptions = 1000;

bool read_whole(int fd, std::byte* to, size_t bytes) {
  int interruptions = 0;
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd, to + done, bytes - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR && ++interruptions < kMostInterruptions) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

const char* read_sealed(int fd, const DeviceCodeSeal& seal, std::span<const std::byte>* code) {
  const off_t bytes_in_file = lseek(fd, 0, SEEK_END);  // fstat would ask for glibc 2.33
  if (bytes_in_file < 0) return "no_file";
  if (static_cast<uint64_t>(bytes_in_file) != seal.bytes) return "other_build";
  void* memory = mmap(nullptr, seal.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return "no_mapping";
  auto* bytes = static_cast<std::byte*>(memory);
  if (!read_whole(fd, bytes, seal.bytes) || checksum(bytes, seal.bytes) != seal.checksum) {
    munmap(memory, seal.bytes);
    return "other_build";
  }
  mprotect(memory, seal.bytes, PROT_READ);
  *code = {bytes, seal.bytes};
  return nullptr;
}

}  // namespace

void DeviceCodeFile::read(const char* path, const DeviceCodeSeal& seal) {
  if (is_read() || failure_ != nullptr) return;
  if (seal.bytes == 0) {
    failure_ = "not_built";
    return;
  }
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe in its place must not hold us up
  if (fd < 0) {
    failure_ = "no_file";
    return;
  }
  failure_ = read_sealed(fd, seal, &code_);
  close(fd);
}

}  // namespace foreshock
