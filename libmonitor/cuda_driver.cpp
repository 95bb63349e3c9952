// Looks up the CUDA driver's functions, reads the file of kernels, and allocates in a ring of device memory.
// Failures are returned as words such as "no_driver"; null means success.
#include "libmonitor/cuda_driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "kernels/sums.h"
#include "libmonitor/base.h"

namespace foreshock {
namespace {

using GetVersion = cuda::Result (*)(int*);
// The signature since CUDA 12.0. The last parameter receives the reason if nothing was found.
using GetProcAddress = cuda::Result (*)(const char*, void**, int, uint64_t, int*);

}  // namespace

const char* DriverApi::find_all(const char* library, int oldest) {
  // dlopen and dlsym are weak symbols: with an older glibc they are null in a process without libdl.
  if (&dlopen == nullptr || &dlsym == nullptr) return "no_loader";
  // The trainer, which has tensors on a device, has loaded the driver: dlopen increments a reference count.
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return "no_driver";
  const auto get_version = reinterpret_cast<GetVersion>(dlsym(handle, "cuDriverGetVersion"));
  const auto get_address = reinterpret_cast<GetProcAddress>(dlsym(handle, "cuGetProcAddress_v2"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != cuda::kSuccess) return "no_driver";
  version_ = version;
  if (get_address == nullptr || version < oldest) return "old_driver";

  // `since`: the CUDA version in which the function got the signature that is declared here.
  const auto find = [&]<class Call>(const char* symbol, int since, Call** call) {
    void* address = nullptr;
    int status = 0;
    if (get_address(symbol, &address, since, cuda::kLegacyStream, &status) != cuda::kSuccess)
      address = nullptr;
    *call = reinterpret_cast<Call*>(address);
    return address != nullptr;
  };
  bool all = true;
  // The two lists (cuda_driver.h) have all functions; the optional ones stay null if the driver lacks them.
#define FORESHOCK_DRIVER_FIND(call, symbol, version, parameters) all &= find(#symbol, version, &call);
  FORESHOCK_DRIVER_CALLS(FORESHOCK_DRIVER_FIND)
#undef FORESHOCK_DRIVER_FIND
#define FORESHOCK_DRIVER_FIND_OPTIONAL(call, symbol, version, parameters) find(#symbol, version, &call);
  FORESHOCK_OPTIONAL_DRIVER_CALLS(FORESHOCK_DRIVER_FIND_OPTIONAL)
#undef FORESHOCK_DRIVER_FIND_OPTIONAL
  return all ? nullptr : "old_driver";
}

bool DriverApi::find_kernel(cuda::Module module, const char* name, cuda::Function* kernel) const {
  return module_get_function(kernel, module, name) == cuda::kSuccess &&
         (func_load == nullptr || func_load(*kernel) == cuda::kSuccess);  // optional: loads the kernel now
}

bool DriverApi::launch(cuda::Function kernel, const LaunchShape& shape, void* job,
                       cuda::Stream stream) const {
  void* parameters[] = {job};
  return ok(launch_kernel(kernel, shape.blocks, 1, 1, shape.threads, 1, 1, shape.shared_bytes, stream,
                          parameters, nullptr));
}

// A child that was forked from the process that opened the driver (opened_by_) cannot use the driver.
bool DriverApi::is_open() const { return opened_by_.load(std::memory_order_acquire) == getpid(); }

const char* DriverApi::failure() const {
  const pid_t opener = opened_by_.load(std::memory_order_acquire);  // 0: the driver was not opened
  return opener != 0 && opener != getpid() ? "forked" : failure_.load(std::memory_order_acquire);
}

bool DriverApi::open(const char* library, int oldest) {
  const pid_t self = getpid();
  if (is_open()) return true;
  if (failure() != nullptr) return false;
  TryLock lock(opening_);
  if (!lock) return false;  // another thread opens it now; the caller tries again later
  if (opened_by_.load(std::memory_order_relaxed) != 0) return true;  // another thread opened it first
  if (const char* why = find_all(library, oldest)) {
    failure_.store(why, std::memory_order_release);
    return false;
  }
  opened_by_.store(self, std::memory_order_release);
  return true;
}

namespace {

// Limit of EINTR errors per file. A timer of the trainer could send signals so often that every read fails.
constexpr int kMostInterruptions = 1000;

bool read_whole(int fd, std::byte* buffer, size_t bytes) {
  int interruptions = 0;
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd, buffer + done, bytes - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR && ++interruptions < kMostInterruptions) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

// Reads the file into new memory and checks its size and checksum. Returns the reason of a failure, or null.
const char* read_sealed(int fd, const DeviceCodeSeal& seal, std::span<const std::byte>* code) {
  const off_t bytes_in_file = lseek(fd, 0, SEEK_END);  // lseek, because fstat would require glibc 2.33
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

void Fatbin::read(const char* path, const DeviceCodeSeal& seal) {
  if (is_read() || failure_ != nullptr) return;
  if (seal.bytes == 0) {  // the library was built without device kernels
    failure_ = "not_built";
    return;
  }
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // O_NONBLOCK: opening a FIFO must not block
  if (fd < 0) {
    failure_ = "no_file";
    return;
  }
  failure_ = read_sealed(fd, seal, &code_);
  close(fd);
}

void StagingRing::reset(uint64_t bytes) {
  bytes_ = bytes;
  first_ = count_ = 0;
}

void StagingRing::free_completed() {
  for (; count_ > 0; --count_, first_ = (first_ + 1) % kMostSlices) {
    // After the copy of the slice, the stream stores `done` or more into this word, which never decreases.
    std::atomic_ref<uint64_t> word(*const_cast<uint64_t*>(at(0).sequence));
    if (word.load(std::memory_order_acquire) < at(0).done) return;
  }
}

// Finds a free range, which commit() then takes. The used ranges follow one another, from the oldest to the
// newest. After a range near the end of the ring, the next one begins at offset 0.
bool StagingRing::find(uint64_t bytes, FreeRange* free) {
  free_completed();
  const uint64_t need = (bytes + kAlign - 1) / kAlign * kAlign;
  if (count_ == kMostSlices || need > bytes_) return false;
  uint64_t begin = 0;
  if (count_ > 0) {
    const uint64_t oldest = at(0).begin, newest = at(count_ - 1).end;
    begin = newest;
    if (newest > oldest) {  // the used part does not wrap: memory is free after it and before it
      if (bytes_ - newest < need) {
        begin = 0;
        if (oldest < need) return false;
      }
    } else if (oldest - newest < need) {  // the used part wraps: only [newest, oldest) is free
      return false;
    }
  }
  found_ = {begin, begin + need, nullptr, 0};
  *free = {begin, (first_ + count_) % kMostSlices};
  return true;
}

void StagingRing::commit(const uint64_t* sequence, uint64_t done) {
  found_.sequence = sequence;
  found_.done = done;
  at(count_) = found_;
  ++count_;
}

}  // namespace foreshock
