// Memory of the device, and of the host as the device sees it.
#include <cstring>
#include <new>

#include "tests/support/fake_cuda/checks.h"
#include "tests/support/fake_cuda/entry_points.h"

using namespace fake_cuda;

FAKE_ENTRY cuMemGetInfo_v2(size_t* free, size_t* total) {
  Lock lock(world().mutex);
  *free = world().faults.free_bytes;
  *total = size_t{80} << 30;
  return enter("cuMemGetInfo");
}

FAKE_ENTRY cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  Lock lock(world().mutex);
  if (const int error = enter("cuMemAlloc", nullptr, bytes)) return error;
  if (const int error = check_unsafe("cuMemAlloc")) return error;
  if (bytes > world().faults.free_bytes) return kOutOfMemory;
  void* memory = ::operator new (bytes, std::align_val_t{256});
  std::memset(memory, 0xa5, bytes);  // it is what somebody else left
  *address = reinterpret_cast<uint64_t>(memory);
  world().memory[*address] = {bytes, current()};
  return kSuccess;
}

FAKE_ENTRY cuMemHostRegister_v2(void* begin, size_t bytes, unsigned flags) {
  Lock lock(world().mutex);
  if (const int error = enter("cuMemHostRegister", nullptr, bytes)) return error;
  if (const int error = check_unsafe("cuMemHostRegister")) return error;
  const auto at = reinterpret_cast<uint64_t>(begin);
  if (bytes == 0) return kInvalidValue;
  for (const auto& [other, length] : world().pinned)  // by bytes: what only shares a page is no overlap
    if (at < other + length && other < at + bytes) return kAlreadyRegistered;
  if (flags != 3) violation("pinned for one context only, or not to be stored into");
  world().pinned[at] = bytes;
  return kSuccess;
}

FAKE_ENTRY cuMemHostGetDevicePointer_v2(uint64_t* address, void* host, unsigned) {
  Lock lock(world().mutex);
  if (const int error = enter("cuMemHostGetDevicePointer")) return error;
  if (!is_inside(world().pinned, reinterpret_cast<uint64_t>(host), 1)) return kInvalidValue;
  *address = reinterpret_cast<uint64_t>(host) + kHostOffset;
  return kSuccess;
}

FAKE_ENTRY cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void* handle) {
  Lock lock(world().mutex);
  if (const int error = enter("cuMemsetD8Async", handle, bytes)) return error;
  if (const int error = check_stream("cuMemsetD8Async", stream_of(handle))) return error;
  if (!is_on_device(address, bytes)) violation("a set outside of device memory");
  push(stream_of(handle), {[=] { std::memset(reinterpret_cast<void*>(address), value, bytes); }, nullptr});
  return kSuccess;
}

FAKE_ENTRY cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* handle) {
  Lock lock(world().mutex);
  if (const int error = enter("cuMemcpyDtoHAsync", handle, bytes)) return error;
  if (const int error = check_stream("cuMemcpyDtoHAsync", stream_of(handle))) return error;
  if (!is_inside(world().pinned, reinterpret_cast<uint64_t>(to), bytes))
    violation("a copy to what is not pinned: it waits");
  if (!is_on_device(from, bytes)) violation("a copy from memory that is not ours");
  push(stream_of(handle), {[=] { std::memcpy(to, reinterpret_cast<void*>(from), bytes); }, nullptr, true});
  return kSuccess;
}
