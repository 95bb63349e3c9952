// Modules and what is launched of them.
#include <chrono>
#include <cstring>
#include <utility>

#include "tests/support/fake_cuda/checks.h"
#include "tests/support/fake_cuda/entry_points.h"

using namespace fake_cuda;

FAKE_ENTRY cuModuleLoadData(void** module, const void* image) {
  Lock lock(world().mutex);
  if (const int error = enter("cuModuleLoadData")) return error;
  if (const int error = check_unsafe("cuModuleLoadData")) return error;
  if (image == nullptr) return kInvalidValue;
  // The container of nvcc tells its own length.
  struct {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
  } header;
  std::memcpy(&header, image, sizeof header);
  if (header.magic != 0xba55ed50) return kInvalidImage;
  const std::string container(static_cast<const char*>(image), header.header_bytes + header.bytes);
  const Faults& faults = world().faults;
  if (faults.architecture != 0)
    if (const int error = load_error(container, faults.version, faults.architecture)) return error;
  world().images.push_back(container);
  std::this_thread::sleep_for(std::chrono::microseconds(world().faults.load_delay_us));
  *module = current();
  return kSuccess;
}

FAKE_ENTRY cuModuleGetFunction(void** function, void* module, const char* name) {
  Lock lock(world().mutex);
  if (const int error = enter("cuModuleGetFunction")) return error;
  if (!is_kernel(name)) return kNotFound;
  // Found, not loaded, as CUDA_MODULE_LOADING=LAZY has it where a driver can be told to load.
  const bool is_loaded = world().faults.version < 12040 || world().faults.missing == "cuFuncLoad";
  world().functions.push_back(
      std::make_unique<Function>(Function{static_cast<Context*>(module), name, is_loaded}));
  *function = world().functions.back().get();
  return kSuccess;
}

FAKE_ENTRY cuFuncLoad(void* handle) {
  Lock lock(world().mutex);
  if (const int error = enter("cuFuncLoad")) return error;
  if (const int error = check_unsafe("cuFuncLoad")) return error;
  static_cast<Function*>(handle)->is_loaded = true;
  return kSuccess;
}

FAKE_ENTRY cuFuncSetAttribute(void* handle, int attribute, int value) {
  Lock lock(world().mutex);
  auto* function = static_cast<Function*>(handle);
  if (const int error = enter("cuFuncSetAttribute")) return error;
  if (const int error = check(function->context)) return error;
  if (attribute != 8 || value > world().faults.shared_bytes) return kInvalidValue;
  function->most_shared = value;
  return kSuccess;
}

FAKE_ENTRY cuLaunchKernel(void* handle, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
                          unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                          void* stream, void** parameters, void** extra) {
  Lock lock(world().mutex);
  auto* function = static_cast<Function*>(handle);
  if (const int error = enter("cuLaunchKernel", stream)) return error;
  if (const int error = check(function->context)) return error;
  if (const int error = check_stream("cuLaunchKernel", stream_of(stream))) return error;
  if (blocks_y * blocks_z * threads_y * threads_z != 1 || extra != nullptr)
    violation("a launch that our kernels are not made for");
  if (shared_bytes > static_cast<unsigned>(function->most_shared)) return kInvalidValue;
  if (!std::exchange(function->is_loaded, true))
    violation("a launch that has to load its kernel first: it waits for the device");
  push(stream_of(stream), {work_of(function->name, {blocks, threads, shared_bytes}, parameters[0]), nullptr});
  return kSuccess;
}
