// Our typedefs against NVIDIA's own, where they are installed.
#include <cudaTypedefs.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "libmonitor/cuda_driver.h"

namespace foreshock {
namespace {

// The same bits in the same place: pointers are pointers, numbers have the same size and kind.
template <class Ours, class Theirs>
constexpr bool kAlike =
    std::is_pointer_v<Ours> ? std::is_pointer_v<Theirs>
                            : !std::is_pointer_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
                                  (std::is_integral_v<Theirs> || std::is_enum_v<Theirs>);

template <class Ours, class Theirs>
struct Compare : std::false_type {};
template <class R, class... Ours, class S, class... Theirs>
requires(sizeof...(Ours) == sizeof...(Theirs)) struct Compare<R (*)(Ours...), S (*)(Theirs...)>
    : std::bool_constant<kAlike<R, S> && (kAlike<Ours, Theirs> && ...)> {
};

// PFN_<symbol>_v<version> is the signature that cuGetProcAddress gives for that version.
#define CHECK_ABI(call, symbol, version, parameters) \
  static_assert(Compare<decltype(DriverApi::call), PFN_##symbol##_v##version>::value, #symbol);
FORESHOCK_DRIVER_CALLS(CHECK_ABI)
FORESHOCK_OPTIONAL_DRIVER_CALLS(CHECK_ABI)
#undef CHECK_ABI

TEST(DeviceDriverAbi, NumbersAreThoseOfTheDriver) {
  EXPECT_EQ(cuda::kSuccess, CUDA_SUCCESS);
  EXPECT_EQ(cuda::kAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuda::kCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(cuda::kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cuda::kNotCapturing, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(cuda::kStreamNonBlocking, unsigned{CU_STREAM_NON_BLOCKING});
  EXPECT_EQ(cuda::kEventDisableTiming, unsigned{CU_EVENT_DISABLE_TIMING});
  EXPECT_EQ(cuda::kProcessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  EXPECT_EQ(cuda::kSharedBytesOptIn, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  EXPECT_EQ(cuda::kMostDynamicShared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  EXPECT_EQ(cuda::kRegisterPortable, unsigned{CU_MEMHOSTREGISTER_PORTABLE});
  EXPECT_EQ(cuda::kRegisterDeviceMap, unsigned{CU_MEMHOSTREGISTER_DEVICEMAP});
  EXPECT_EQ(cuda::kCanWriteFromStream, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
  EXPECT_EQ(cuda::kLegacyStream, uint64_t{CU_GET_PROC_ADDRESS_LEGACY_STREAM});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(CU_STREAM_PER_THREAD) + 1, cuda::kFirstStreamHandle);
  EXPECT_EQ(sizeof(cuda::Address), sizeof(CUdeviceptr));
}

}  // namespace
}  // namespace foreshock
