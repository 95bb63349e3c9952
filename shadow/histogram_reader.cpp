#include "shadow/histogram_reader.h"

#include <algorithm>

#include "kernels/histogram.h"
#include "kernels/packed_counters.h"

namespace foreshock {
namespace {

uint64_t values_in(const Histogram& histogram) { return histogram.finite + histogram.non_finite(); }

}  // namespace

bool HistogramReader::read_values(std::span<const std::byte> bytes, DType type, uint64_t elements,
                                  Histogram* histogram) {
  *histogram = {};
  if (elements > kMostBinned || bytes.size() != elements * size_of(type)) return false;
  bins_.resize(kBinWords);
  patterns_.resize(kPatternWords);
  if (type == DType::kFp32) {
    count_bins(bytes.data(), elements, bins_.data());
    take_bins(bins_.data(), histogram);
  } else {
    count_patterns(bytes.data(), elements, patterns_.data());
    take_patterns(patterns_.data(), type, histogram);
  }
  return true;
}

bool HistogramReader::read_counters(std::span<const std::byte> bytes, DType type, uint64_t elements,
                                    Histogram* histogram) {
  *histogram = {};
  bins_.resize(kBinWords);
  patterns_.resize(kPatternWords);
  if (unpack(bytes, type, elements, histogram) && values_in(*histogram) == elements) return true;
  std::fill(bins_.begin(), bins_.end(), 0);  // whatever wrong bytes have left there
  std::fill(patterns_.begin(), patterns_.end(), 0);
  return false;
}

bool HistogramReader::unpack(std::span<const std::byte> bytes, DType type, uint64_t elements,
                             Histogram* histogram) {
  while (!bytes.empty()) {
    if (type == DType::kFp32) {
      if (!unpack_bins(&bytes, elements, bins_.data())) return false;
      take_bins(bins_.data(), histogram);
    } else {
      if (!unpack_patterns(&bytes, elements, patterns_.data())) return false;
      take_patterns(patterns_.data(), type, histogram);
    }
    if (values_in(*histogram) > elements) return false;
  }
  return true;
}

}  // namespace foreshock
