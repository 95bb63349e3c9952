#include "libmonitor/histogram_packer.h"

#include <algorithm>
#include <cstring>

#include "kernels/histogram.h"

namespace foreshock {

using segment::HistogramForm;

bool HistogramPacker::reserve() { return counters_.reserve(kBinWords * sizeof(uint64_t)); }

size_t HistogramPacker::pack(const void* values, DType type, uint64_t elements, char* to, size_t room,
                             HistogramForm* form) {
  const uint64_t bytes = elements * size_of(type);
  if (bytes <= kSmallBytes) {
    *form = HistogramForm::kValues;
    if (bytes > room) return kPackFailed;
    std::memcpy(to, values, bytes);
    return bytes;
  }
  const bool is_fp32 = type == DType::kFp32;
  *form = is_fp32 ? HistogramForm::kBins : HistogramForm::kPatterns;
  const uint64_t most = is_fp32 ? kMostBinned : kMostPatterns;
  size_t packed = 0;
  for (uint64_t done = 0; done < elements; done += most) {
    const auto* from = static_cast<const char*>(values) + done * size_of(type);
    const size_t size = count(from, type, std::min(most, elements - done), to + packed, room - packed);
    if (size == kPackFailed) return kPackFailed;
    packed += size;
  }
  return packed;
}

size_t HistogramPacker::pack_counted(void* words, DType type, char* to, size_t room, HistogramForm* form) {
  *form = type == DType::kFp32 ? HistogramForm::kBins : HistogramForm::kPatterns;
  return type == DType::kFp32 ? pack_bins(static_cast<uint64_t*>(words), to, room)
                              : pack_patterns(static_cast<uint32_t*>(words), to, room, 1);
}

size_t HistogramPacker::count(const char* values, DType type, uint64_t elements, char* to, size_t room) {
  if (type == DType::kFp32) {
    auto* words = reinterpret_cast<uint64_t*>(counters_.data());
    count_bins(values, elements, words);
    return pack_bins(words, to, room);
  }
  auto* words = reinterpret_cast<uint32_t*>(counters_.data());
  count_patterns(values, elements, words);
  return pack_patterns(words, to, room);
}

}  // namespace foreshock
