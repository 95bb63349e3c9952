// How the others are found.
#include "tests/support/fake_cuda/entry_points.h"

#include "tests/support/fake_cuda/world.h"

using namespace fake_cuda;

FAKE_ENTRY cuDriverGetVersion(int* version) {
  Lock lock(world().mutex);
  *version = world().faults.version;
  return kSuccess;
}

FAKE_ENTRY cuGetProcAddress_v2(const char* symbol, void** address, int version, uint64_t flags, int* status) {
  struct Entry {
    int since;
    void* address;
  };
#define ENTRY(name, function, since)                     \
  {                                                      \
#name, { since, reinterpret_cast<void*>(&function) } \
  }
  static const std::map<std::string, Entry> kEntries = {
      ENTRY(cuCtxGetCurrent, cuCtxGetCurrent, 4000),
      ENTRY(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000),
      ENTRY(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000),
      ENTRY(cuCtxGetDevice, cuCtxGetDevice, 2000),
      ENTRY(cuCtxGetId, cuCtxGetId, 12000),
      ENTRY(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050),
      ENTRY(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000),
      ENTRY(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000),
      ENTRY(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000),
      ENTRY(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000),
      ENTRY(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010),
      ENTRY(cuStreamIsCapturing, cuStreamIsCapturing, 10000),
      ENTRY(cuStreamGetCtx, cuStreamGetCtx, 9020),
      ENTRY(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050),
      ENTRY(cuStreamWaitEvent, cuStreamWaitEvent, 3020),
      ENTRY(cuStreamWriteValue64, cuStreamWriteValue64_v2, 11070),
      ENTRY(cuEventCreate, cuEventCreate, 2000),
      ENTRY(cuEventRecord, cuEventRecord, 2000),
      ENTRY(cuMemGetInfo, cuMemGetInfo_v2, 3020),
      ENTRY(cuMemAlloc, cuMemAlloc_v2, 3020),
      ENTRY(cuMemHostRegister, cuMemHostRegister_v2, 6050),
      ENTRY(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020),
      ENTRY(cuMemsetD8Async, cuMemsetD8Async, 3020),
      ENTRY(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020),
      ENTRY(cuModuleLoadData, cuModuleLoadData, 2000),
      ENTRY(cuModuleGetFunction, cuModuleGetFunction, 2000),
      ENTRY(cuFuncLoad, cuFuncLoad, 12040),
      ENTRY(cuFuncSetAttribute, cuFuncSetAttribute, 9000),
      ENTRY(cuLaunchKernel, cuLaunchKernel, 4000),
  };
#undef ENTRY
  Lock lock(world().mutex);
  world().symbols.push_back(symbol);
  const auto found = kEntries.find(symbol);
  const bool has = found != kEntries.end() && world().faults.missing != symbol && flags == 1 &&
                   version >= found->second.since && world().faults.version >= found->second.since;
  *status = has ? 0 : 1;
  *address = has ? found->second.address : nullptr;
  return has ? kSuccess : kNotFound;
}
