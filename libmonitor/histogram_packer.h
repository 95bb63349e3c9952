// The values of a tensor in the form in which a record tells them: themselves where they are few, else
// counted.
#ifndef FORESHOCK_LIBMONITOR_HISTOGRAM_PACKER_H_
#define FORESHOCK_LIBMONITOR_HISTOGRAM_PACKER_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/histogram.h"
#include "libmonitor/private_memory.h"
#include "segment/layout.h"

namespace foreshock {

// One caller at a time.
class HistogramPacker {
 public:
  static constexpr uint64_t kSmallBytes = 16 << 10;  // up to here a tensor's values are told themselves

  // Set-up. False: there is no memory for the counters.
  bool reserve();

  // Packs dense values of fp32, bf16 or fp16 into `room` bytes. Returns how many it took, or kPackFailed.
  size_t pack(const void* values, DType type, uint64_t elements, char* to, size_t room,
              segment::HistogramForm* form);

  // The same of values that were counted elsewhere: one set of the words of kernels/histogram.h, which are
  // all zero afterwards.
  static size_t pack_counted(void* words, DType type, char* to, size_t room, segment::HistogramForm* form);

 private:
  size_t count(const char* values, DType type, uint64_t elements, char* to, size_t room);

  PrivateMemory counters_;  // all zero between calls
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_HISTOGRAM_PACKER_H_
