#include "libmonitor/device_driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include "libmonitor/try_lock.h"

namespace foreshock {
namespace {

using GetVersion = cuda::Result (*)(int*);
// From CUDA 12.0 on; the last one tells why nothing was found.
using GetProcAddress = cuda::Result (*)(const char*, void**, int, uint64_t, int*);

}  // namespace

const char* DeviceDriver::find_all(const char* library, int oldest) {
  // Weak here, see old_glibc.h.
  if (&dlopen == nullptr || &dlsym == nullptr) return "no_loader";
  // A trainer with tensors on a device has it loaded, so this only counts one more user of it.
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return "no_driver";
  const auto get_version = reinterpret_cast<GetVersion>(dlsym(handle, "cuDriverGetVersion"));
  const auto get_address = reinterpret_cast<GetProcAddress>(dlsym(handle, "cuGetProcAddress_v2"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != cuda::kSuccess) return "no_driver";
  if (get_address == nullptr || version < oldest) return "old_driver";
  version_ = version;

  const auto find = [&]<class Call>(const char* symbol, int wanted, Call** call) {
    void* address = nullptr;
    int status = 0;
    if (get_address(symbol, &address, wanted, cuda::kLegacyStream, &status) != cuda::kSuccess)
      address = nullptr;
    *call = reinterpret_cast<Call*>(address);
    return address != nullptr;
  };
  bool all = true;
#define FORESHOCK_DRIVER_FIND(call, symbol, version, parameters) all &= find(#symbol, version, &call);
  FORESHOCK_DRIVER_CALLS(FORESHOCK_DRIVER_FIND)
#undef FORESHOCK_DRIVER_FIND
#define FORESHOCK_DRIVER_LOOK_FOR(call, symbol, version, parameters) find(#symbol, version, &call);
  FORESHOCK_OPTIONAL_DRIVER_CALLS(FORESHOCK_DRIVER_LOOK_FOR)
#undef FORESHOCK_DRIVER_LOOK_FOR
  return all ? nullptr : "old_driver";
}

bool DeviceDriver::find_kernel(cuda::Module module, const char* name, cuda::Function* kernel) const {
  return module_get_function(kernel, module, name) == cuda::kSuccess &&
         (func_load == nullptr || func_load(*kernel) == cuda::kSuccess);
}

bool DeviceDriver::is_open() const { return opened_by_.load(std::memory_order_acquire) == getpid(); }

const char* DeviceDriver::failure() const {
  const pid_t by = opened_by_.load(std::memory_order_acquire);
  return by != 0 && by != getpid() ? "forked" : failure_.load(std::memory_order_acquire);
}

bool DeviceDriver::open(const char* library, int oldest) {
  const pid_t self = getpid();
  if (is_open()) return true;
  if (failure() != nullptr) return false;
  TryLock lock(opening_);
  if (!lock) return false;
  if (opened_by_.load(std::memory_order_relaxed) != 0) return true;  // by a thread that was faster
  if (const char* why = find_all(library, oldest)) {
    failure_.store(why, std::memory_order_release);
    return false;
  }
  opened_by_.store(self, std::memory_order_release);
  return true;
}

}  // namespace foreshock
