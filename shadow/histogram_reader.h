// Histograms out of what crosses from a trainer: the values of a small tensor, or the packed counters of a
// large one. Nothing in the bytes is trusted.
#ifndef FORESHOCK_SHADOW_HISTOGRAM_READER_H_
#define FORESHOCK_SHADOW_HISTOGRAM_READER_H_

#include <cstddef>
#include <span>
#include <vector>

#include "shadow/histogram.h"

namespace foreshock {

// Keeps its counters from tensor to tensor. Thread-compatible. Both return false when the bytes are not of
// just `elements` values of `type` (fp32, bf16 or fp16).
class HistogramReader {
 public:
  bool read_values(std::span<const std::byte> bytes, DType type, uint64_t elements, Histogram* histogram);
  // As kernels/histogram.h packs them.
  bool read_counters(std::span<const std::byte> bytes, DType type, uint64_t elements, Histogram* histogram);

 private:
  void count_few(std::span<const std::byte> bytes, DType type, Histogram* histogram);
  bool unpack(std::span<const std::byte> bytes, DType type, uint64_t elements, Histogram* histogram);

  std::vector<uint64_t> bins_;
  std::vector<uint32_t> patterns_;
  std::vector<uint32_t> keys_, sorted_;
};

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_HISTOGRAM_READER_H_
