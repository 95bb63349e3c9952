// The entry points by the names and signatures of the real driver.
#ifndef FORESHOCK_TESTS_SUPPORT_FAKE_CUDA_ENTRY_POINTS_H_
#define FORESHOCK_TESTS_SUPPORT_FAKE_CUDA_ENTRY_POINTS_H_

#include <cstddef>
#include <cstdint>

#define FAKE_ENTRY extern "C" __attribute__((visibility("default"))) int

FAKE_ENTRY cuCtxGetCurrent(void** context);
FAKE_ENTRY cuCtxPushCurrent_v2(void* context);
FAKE_ENTRY cuCtxPopCurrent_v2(void** context);
FAKE_ENTRY cuCtxGetDevice(int* device);
FAKE_ENTRY cuCtxGetId(void* context, unsigned long long* id);
FAKE_ENTRY cuCtxGetStreamPriorityRange(int* least, int* greatest);
FAKE_ENTRY cuDeviceGetAttribute(int* value, int attribute, int);
FAKE_ENTRY cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active);
FAKE_ENTRY cuDevicePrimaryCtxRetain(void** context, int device);
FAKE_ENTRY cuDevicePrimaryCtxRelease_v2(int device);
FAKE_ENTRY cuThreadExchangeStreamCaptureMode(int* mode);
FAKE_ENTRY cuStreamIsCapturing(void* handle, int* status);
FAKE_ENTRY cuStreamGetCtx(void* handle, void** context);
FAKE_ENTRY cuStreamCreateWithPriority(void** handle, unsigned flags, int priority);
FAKE_ENTRY cuStreamWaitEvent(void* handle, void* event, unsigned);
FAKE_ENTRY cuStreamWriteValue64_v2(void* handle, uint64_t address, uint64_t value, unsigned flags);
FAKE_ENTRY cuEventCreate(void** event, unsigned flags);
FAKE_ENTRY cuEventRecord(void* handle, void* stream);
FAKE_ENTRY cuMemGetInfo_v2(size_t* free, size_t* total);
FAKE_ENTRY cuMemAlloc_v2(uint64_t* address, size_t bytes);
FAKE_ENTRY cuMemHostRegister_v2(void* begin, size_t bytes, unsigned flags);
FAKE_ENTRY cuMemHostGetDevicePointer_v2(uint64_t* address, void* host, unsigned);
FAKE_ENTRY cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void* handle);
FAKE_ENTRY cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* handle);
FAKE_ENTRY cuModuleLoadData(void** module, const void* image);
FAKE_ENTRY cuModuleGetFunction(void** function, void* module, const char* name);
FAKE_ENTRY cuFuncLoad(void* handle);
FAKE_ENTRY cuFuncSetAttribute(void* function, int attribute, int value);
FAKE_ENTRY cuLaunchKernel(void* handle, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
                          unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                          void* stream, void** parameters, void** extra);

#endif  // FORESHOCK_TESTS_SUPPORT_FAKE_CUDA_ENTRY_POINTS_H_
