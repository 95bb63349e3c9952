// What is used of NVIDIA's CUPTI, declared here so that nothing of it is needed to build. cupti_abi_test.cpp
// compares it with cupti.h where that is.
#ifndef FORESHOCK_LIBMONITOR_CUPTI_H_
#define FORESHOCK_LIBMONITOR_CUPTI_H_

#include <cstddef>
#include <cstdint>

namespace foreshock::cupti {

using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kSubscribedByAnother = 39;  // CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED

inline constexpr int kDriverApi = 1;  // CUPTI_CB_DOMAIN_DRIVER_API
// cuLaunchKernel, cuLaunchKernel_ptsz, cuLaunchCooperativeKernel, _ptsz, cuLaunchKernelEx, _ptsz: every way
// of launching ends in one of these, the runtime's too.
inline constexpr uint32_t kLaunches[] = {307, 442, 477, 478, 652, 653};

struct CallbackData {
  int site;  // 0: the function is entered
  const char* function;
  const void* parameters;
  void* result;
  const char* symbol;  // of the kernel
};

struct SubscriberParams {
  size_t size;
  const char* name;
  char* holder;  // who else has it is written here
  size_t holder_size;
};
inline constexpr size_t kHolderSize = 64;

using Subscriber = void*;
using Callback = void (*)(void* given, int domain, uint32_t function, const void* data);

// Of a library that the process has already. `subscribe_v2` is null before CUDA 13.
struct Library {
  Result (*subscribe)(Subscriber*, Callback, void*);
  Result (*subscribe_v2)(Subscriber*, Callback, void*, SubscriberParams*);
  Result (*unsubscribe)(Subscriber);
  Result (*enable_callback)(uint32_t enable, Subscriber, int domain, uint32_t function);
  // Whether torch.profiler runs, or a daemon may start it at any time.
  bool (*profiler_runs)();
};

}  // namespace foreshock::cupti

#endif  // FORESHOCK_LIBMONITOR_CUPTI_H_
