// The first device of this machine through its driver, as a trainer uses it. Every process that forks must
// have forked before: a driver serves only the process that has initialised it.
#ifndef FORESHOCK_TESTS_SUPPORT_LIVE_DEVICE_H_
#define FORESHOCK_TESTS_SUPPORT_LIVE_DEVICE_H_

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "kernels/device_code.h"

namespace foreshock {

class LiveDevice {
 public:
  LiveDevice() {
    if (DeviceCode().empty())
      missing_ = "built without nvcc";
    else if ((library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) == nullptr)
      missing_ = "no libcuda.so.1";
    else
      begin();
  }

  // Why there is none; "" if there is one.
  const std::string& missing() const { return missing_; }

  // By the name that the driver exports, with its version; the driver's result.
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    return function != nullptr ? function(arguments...) : -1;
  }

  // For what no test is about; ends the process where it fails.
  template <class... Arguments>
  void must(const char* name, Arguments... arguments) const {
    const int error = call(name, arguments...);
    if (error == 0) return;
    fprintf(stderr, "%s failed: %d\n", name, error);
    _exit(3);
  }

  uint64_t copy_of(const void* bytes, size_t count) const {
    uint64_t address = 0;
    must("cuMemAlloc_v2", &address, count);
    must("cuMemcpyHtoD_v2", address, bytes, count);
    return address;
  }

  // `flags`: 0 a stream that the legacy default one waits for, 1 one that it does not.
  void* new_stream(unsigned flags) const {
    void* stream = nullptr;
    must("cuStreamCreate", &stream, flags);
    return stream;
  }

  // For all of its streams, ours too; or for what was given to one.
  void wait() const { must("cuCtxSynchronize"); }
  void wait_for(void* stream) const { must("cuStreamSynchronize", stream); }

  size_t free_bytes() const {
    size_t free = 0, total = 0;
    must("cuMemGetInfo_v2", &free, &total);
    return free;
  }

 private:
  void begin() {
    int device = 0;
    void* context = nullptr;
    if (const int error = call("cuInit", 0u); error != 0) {
      missing_ = "cuInit failed: " + std::to_string(error);
      return;
    }
    must("cuDeviceGet", &device, 0);
    must("cuDevicePrimaryCtxRetain", &context, device);
    must("cuCtxSetCurrent", context);
  }

  void* library_ = nullptr;
  std::string missing_;
};

// A stream stands still from where it was shut until the gate is opened, by a store of the host.
class Gate {
 public:
  explicit Gate(const LiveDevice& device) : device_(device) {
    void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) _exit(3);
    word_ = static_cast<uint32_t*>(page);
    device_.must("cuMemHostRegister_v2", page, kPage, 3u);  // portable, mapped
    device_.must("cuMemHostGetDevicePointer_v2", &address_, page, 0u);
  }
  void shut(void* stream) {
    std::atomic_ref<uint32_t>(*word_).store(0, std::memory_order_release);
    device_.must("cuStreamWaitValue32_v2", stream, address_, uint32_t{1}, 0u);  // until it is 1 or more
  }
  void open() { std::atomic_ref<uint32_t>(*word_).store(1, std::memory_order_release); }

 private:
  static constexpr size_t kPage = 65536;  // of any machine
  const LiveDevice& device_;
  uint32_t* word_ = nullptr;
  uint64_t address_ = 0;
};

// Asked in a process of its own, so that this one can still fork.
inline std::string missing_device() {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    const std::string told = LiveDevice().missing();
    _exit(write(ends[1], told.data(), told.size()) == static_cast<ssize_t>(told.size()) ? 0 : 1);
  }
  close(ends[1]);
  char text[200];
  const ssize_t got = read(ends[0], text, sizeof text);
  close(ends[0]);
  int status = -1;
  waitpid(child, &status, 0);
  if (status != 0)
    return "the driver ended a process that asked for it, with status " + std::to_string(status);
  return std::string(text, got > 0 ? static_cast<size_t>(got) : 0);
}

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_SUPPORT_LIVE_DEVICE_H_
