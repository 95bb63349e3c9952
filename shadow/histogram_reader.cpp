#include "shadow/histogram_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/histogram.h"

namespace foreshock {
namespace {

// Up to here sorting the values is quicker than looking through a million counters.
constexpr uint64_t kFew = 1 << 15;

// A set that holds less than it could, and the rest of the values.
constexpr uint64_t kSpareSets = 2;

constexpr uint32_t kSign = 1u << 31, kInfinity = 0x7f800000u;

uint64_t values_in(const Histogram& histogram) { return histogram.finite + histogram.non_finite(); }

uint32_t bits_as_fp32(const std::byte* at, DType type) {
  if (type == DType::kFp32) {
    uint32_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return bits;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return fp32_bits(bits, type);
}

// By the index of the bin (the upper 20 bits), in two passes of 10 bits each.
void sort_by_bin(std::vector<uint32_t>* keys, std::vector<uint32_t>* other) {
  other->resize(keys->size());
  for (int shift : {kBinResidualBits, kBinResidualBits + 10}) {
    std::array<uint32_t, 1025> place{};
    for (uint32_t key : *keys) ++place[(key >> shift & 1023) + 1];
    for (size_t n = 1; n < place.size(); ++n) place[n] += place[n - 1];
    for (uint32_t key : *keys) (*other)[place[key >> shift & 1023]++] = key;
    keys->swap(*other);
  }
}

}  // namespace

bool HistogramReader::read_values(std::span<const std::byte> bytes, DType type, uint64_t elements,
                                  Histogram* histogram) {
  *histogram = {};
  if (elements > kMostBinned || bytes.size() != elements * size_of(type)) return false;
  if (elements <= kFew) {
    count_few(bytes, type, histogram);
    return true;
  }
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

// The key of a value is where it lies: the index of its bin, then its distance from the edge nearer to 0.
void HistogramReader::count_few(std::span<const std::byte> bytes, DType type, Histogram* histogram) {
  keys_.clear();
  for (size_t at = 0; at < bytes.size(); at += size_of(type)) {
    uint32_t bits = bits_as_fp32(bytes.data() + at, type);
    const uint32_t magnitude = bits & ~kSign;
    if (magnitude > kInfinity) {
      ++histogram->not_a_number;
    } else if (magnitude == kInfinity) {
      ++(bits == magnitude ? histogram->plus_infinity : histogram->minus_infinity);
    } else {
      histogram->minus_zero += bits == kSign;
      if (bits == kSign) bits = 0;
      constexpr uint32_t kResidual = (1u << kBinResidualBits) - 1;
      keys_.push_back((((bits & kSign) != 0 ? ~bits : bits | kSign) & ~kResidual) | (bits & kResidual));
    }
  }
  sort_by_bin(&keys_, &sorted_);
  for (uint32_t key : keys_) {
    const uint32_t index = key >> kBinResidualBits;
    if (histogram->bins.empty() || histogram->bins.back().index != index)
      histogram->bins.push_back({index, 0, 0});
    ++histogram->bins.back().count;
    histogram->bins.back().residual += key & ((1u << kBinResidualBits) - 1);
  }
  histogram->finite = keys_.size();
}

// A set takes a look through all counters however few bytes it has: no more of them than values ask for.
bool HistogramReader::unpack(std::span<const std::byte> bytes, DType type, uint64_t elements,
                             Histogram* histogram) {
  const bool is_fp32 = type == DType::kFp32;
  uint64_t sets_left = kSpareSets + elements / (is_fp32 ? kMostBinned : kMostPatterns);
  while (!bytes.empty()) {
    const uint64_t before = values_in(*histogram);
    if (sets_left-- == 0) return false;
    if (is_fp32) {
      if (!unpack_bins(&bytes, elements, bins_.data())) return false;
      take_bins(bins_.data(), histogram);
    } else {
      if (!unpack_patterns(&bytes, elements, patterns_.data())) return false;
      take_patterns(patterns_.data(), type, histogram);
    }
    if (values_in(*histogram) == before || values_in(*histogram) > elements) return false;
  }
  return true;
}

}  // namespace foreshock
