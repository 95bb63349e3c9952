#include "kernels/checksum.h"

#include <cstring>

namespace foreshock {
namespace {

constexpr uint32_t kStride = checksum_factor(1) - checksum_factor(0);  // modulo 2^32
constexpr size_t kBlock = 1024;                                        // words

}  // namespace

uint64_t checksum(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  uint64_t sum = 0;
  uint32_t first = checksum_factor(0);
  size_t words = bytes / sizeof(uint32_t);
  // In blocks, so that the factors within one need no chain of additions: this loop becomes vector code.
  for (; words >= kBlock; words -= kBlock, at += kBlock * sizeof(uint32_t)) {
    uint32_t block[kBlock];
    std::memcpy(block, at, sizeof block);
    for (uint32_t n = 0; n < kBlock; ++n) sum += uint64_t{block[n]} * (first + n * kStride);
    first += static_cast<uint32_t>(kBlock) * kStride;
  }
  for (; words > 0; --words, at += sizeof(uint32_t), first += kStride) {
    uint32_t word;
    std::memcpy(&word, at, sizeof word);
    sum += uint64_t{word} * first;
  }
  uint32_t rest = 0;
  if (const size_t tail = bytes % sizeof(uint32_t); tail > 0) std::memcpy(&rest, at, tail);
  return sum + uint64_t{rest} * first;
}

}  // namespace foreshock
