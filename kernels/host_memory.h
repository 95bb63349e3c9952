// Memory of the host for what reads by address on either side (kernels/packed_sequence.h): any address,
// aligned or not.
#ifndef FORESHOCK_KERNELS_HOST_MEMORY_H_
#define FORESHOCK_KERNELS_HOST_MEMORY_H_

#include <cstdint>
#include <cstring>

namespace foreshock {

struct HostMemory {
  template <class T>
  T load(uint64_t address) const {
    T value;
    std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
    return value;
  }
};

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_HOST_MEMORY_H_
