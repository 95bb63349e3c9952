// Memory of our own, from the kernel and not from the trainer's allocator.
#ifndef FORESHOCK_LIBMONITOR_PRIVATE_MEMORY_H_
#define FORESHOCK_LIBMONITOR_PRIVATE_MEMORY_H_

#include <sys/mman.h>

#include <cstddef>

namespace foreshock {

// Zeroed where it was not touched; a page costs memory once it is. Set-up only. Thread-compatible; never
// given back at the end: threads may still run while the process ends.
class PrivateMemory {
 public:
  // At least `bytes`, whatever was there before lost. False: there is none now.
  bool reserve(size_t bytes) {
    if (bytes <= bytes_ && data_ != nullptr) return true;
    if (data_ != nullptr) munmap(data_, bytes_);
    void* map =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = map == MAP_FAILED ? nullptr : static_cast<char*>(map);
    bytes_ = data_ == nullptr ? 0 : bytes;
    // Counters are sparse: a page that is only read stays the kernel's one page of zeros.
    if (data_ != nullptr) madvise(data_, bytes_, MADV_NOHUGEPAGE);
    return data_ != nullptr;
  }
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_PRIVATE_MEMORY_H_
