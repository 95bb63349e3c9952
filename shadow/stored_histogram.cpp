#include "shadow/stored_histogram.h"

#include <span>

#include "kernels/histogram.h"

namespace foreshock {
namespace {

constexpr uint64_t kVersion = 1;
constexpr uint64_t kMostValues = uint64_t{1} << 48;  // products of two such counts fit where W1 is computed

using Bytes = std::span<const std::byte>;

void put(uint64_t number, std::string* bytes) {
  char text[kLongestVarint];
  bytes->append(text, put_varint(number, text));
}

// A bin of finite values, its residual no more than its values can have, its count no more than are left.
bool get_bin(Bytes* bytes, uint64_t* index, uint64_t* left, HistogramBin* bin) {
  constexpr uint64_t kMost = (1u << kBinResidualBits) - 1, kFirst = 0x800, kEnd = kBins - kFirst;
  uint64_t distance = 0;
  if (!get_varint(bytes, &distance) || !get_varint(bytes, &bin->count) || !get_varint(bytes, &bin->residual))
    return false;
  if (distance == 0 || distance > kBins || bin->count == 0 || bin->count > *left) return false;
  *index += distance;
  *left -= bin->count;
  bin->index = static_cast<uint32_t>(*index - 1);  // distances start before the first bin
  return *index > kFirst && *index <= kEnd && bin->residual <= bin->count * kMost;
}

}  // namespace

std::string store(const Histogram& histogram) {
  std::string bytes;
  for (uint64_t number : {kVersion, histogram.finite, histogram.minus_zero, histogram.not_a_number,
                          histogram.plus_infinity, histogram.minus_infinity, uint64_t{histogram.bins.size()}})
    put(number, &bytes);
  uint32_t before = 0;
  for (const HistogramBin& bin : histogram.bins) {
    put(bin.index + 1 - before, &bytes);
    put(bin.count, &bytes);
    put(bin.residual, &bytes);
    before = bin.index + 1;
  }
  return bytes;
}

bool restore(std::string_view stored, Histogram* histogram) {
  Bytes bytes = std::as_bytes(std::span(stored));
  Histogram read;
  uint64_t version = 0, bins = 0, index = 0;
  for (uint64_t* number : {&version, &read.finite, &read.minus_zero, &read.not_a_number, &read.plus_infinity,
                           &read.minus_infinity, &bins})
    if (!get_varint(&bytes, number)) return false;
  uint64_t left = read.finite;
  if (version != kVersion || bins > bytes.size() / 3) return false;
  if (read.finite > kMostValues || read.minus_zero > read.finite) return false;
  read.bins.resize(bins);
  for (HistogramBin& bin : read.bins)
    if (!get_bin(&bytes, &index, &left, &bin)) return false;
  if (left != 0 || !bytes.empty()) return false;
  *histogram = std::move(read);
  return true;
}

}  // namespace foreshock
