// The stream that an operation on a CUDA tensor is given to, without a word of CUDA: torch keeps for each
// thread and device which stream is current, and tells it through the guard that its CUDA library registers.
// What is asked reads thread-local words of torch's; nothing is set up by it, since the tensor is there.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_DEVICE_STREAM_H_
#define FORESHOCK_INTEGRATIONS_TORCH_DEVICE_STREAM_H_

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <atomic>

// An adapter that is shipped loads on every glibc that its torch does; 2.34 gave the functions of the dynamic
// loader a new version, and serves the old one too. Weak, since before that they are in libdl, where whoever
// has loaded torch has them.
#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#if defined(__x86_64__)
#define FORESHOCK_OLD_LOADER "GLIBC_2.2.5"
#else
#define FORESHOCK_OLD_LOADER "GLIBC_2.17"
#endif
#pragma weak dlopen
#pragma weak dlsym
__asm__(".symver dlopen, dlopen@" FORESHOCK_OLD_LOADER);
__asm__(".symver dlsym, dlsym@" FORESHOCK_OLD_LOADER);
// So did it with this function of libpthread, which torch itself needs.
__asm__(".symver pthread_mutex_trylock, pthread_mutex_trylock@" FORESHOCK_OLD_LOADER);
#define FORESHOCK_HAS_LOADER (dlopen != nullptr && dlsym != nullptr)
#else
#define FORESHOCK_HAS_LOADER true
#endif

namespace foreshock::adapter {

// As the core's header has it: the legacy default stream, which the runtime calls by a null handle.
inline constexpr uintptr_t kLegacyStream = 1;

// The handle that torch's guard gives, where this torch's guards can (not yet in 2.6); false where not.
template <typename Guard>
bool StreamOfGuard(const Guard& guard, c10::Device device, void** handle) noexcept try {
  if constexpr (requires(const Guard& g, c10::Stream s) { g.getStreamNativeHandle(s); }) {
    *handle = guard.getStreamNativeHandle(guard.getStream(device));
    return true;
  }
  return false;
} catch (...) {
  return false;
}

// From torch's C shim for compiled graphs, whose functions never change: in its CUDA library, which every
// other torch with a CUDA tensor has loaded.
inline bool StreamOfShim(c10::Device device, void** handle) noexcept {
  using CurrentStream = int32_t (*)(int32_t, void**);
  static const CurrentStream current = [] {
    if (!FORESHOCK_HAS_LOADER) return CurrentStream{nullptr};
    for (const char* name :
         {"libtorch_cuda.so", "libtorch_cuda.so." C10_STRINGIZE(TORCH_VERSION_MAJOR) "." C10_STRINGIZE(
                                  TORCH_VERSION_MINOR)}) {  // Debian's
      void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
      void* symbol = library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr;
      if (symbol) return reinterpret_cast<CurrentStream>(symbol);
    }
    return CurrentStream{nullptr};
  }();
  return current && current(device.index(), handle) == 0;
}

// The current stream of this thread on the tensor's device: hooks are called before the operation switches to
// that device, so another one may be current. Null: not a CUDA tensor, or nobody can tell.
inline void* StreamOf(const at::Tensor& tensor) noexcept {
  if (!tensor.is_cuda()) return nullptr;
  static constinit std::atomic<bool> guard_tells{true};
  const c10::Device device = tensor.device();
  void* handle = nullptr;
  bool known = false;
  // Not by way of VirtualGuardImpl, whose messages want a newer C++ runtime than packages may (torch 2.8).
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(device.type())].load();
  if (guard_tells.load(std::memory_order_relaxed) && guard != nullptr) {
    known = StreamOfGuard(*guard, device, &handle);
    if (!known) guard_tells.store(false, std::memory_order_relaxed);  // an exception at every call is dear
  }
  if (!known && !StreamOfShim(device, &handle)) return nullptr;
  return handle ? handle : reinterpret_cast<void*>(kLegacyStream);
}

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_DEVICE_STREAM_H_
