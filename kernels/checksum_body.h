// The body of kChecksum. A sum modulo 2^64: every order gives the same bits.
#ifndef FORESHOCK_KERNELS_CHECKSUM_BODY_H_
#define FORESHOCK_KERNELS_CHECKSUM_BODY_H_

#include "kernels/block.h"
#include "kernels/checksum.h"
#include "kernels/device_jobs.h"

namespace foreshock {

// Word number `n`, in pieces of Unit, to which `from` is aligned; bytes behind the end are zero.
template <class Unit, class Block>
FORESHOCK_DEVICE uint32_t checksum_word(const ChecksumJob& job, uint64_t n, const Block& block) {
  if constexpr (sizeof(Unit) == sizeof(uint32_t)) {
    if (4 * n + 4 <= job.bytes) return block.template load<uint32_t>(job.from + 4 * n);
    return checksum_word<uint8_t>(job, n, block);
  } else {
    uint32_t word = 0;
    for (uint32_t at = 0; at < 4; at += sizeof(Unit)) {
      if (4 * n + at + sizeof(Unit) <= job.bytes)
        word |= uint32_t{block.template load<Unit>(job.from + 4 * n + at)} << 8 * at;
    }
    return word;
  }
}

template <class Unit, class Block>
FORESHOCK_DEVICE void checksum_words(const ChecksumJob& job, Block& block) {
  const uint64_t words = (job.bytes + 3) / 4;
  uint64_t* sum = block.template shared<uint64_t>(0);
  block.each([&](uint32_t thread) {
    if (thread == 0) *sum = 0;
  });
  block.each([&](uint32_t thread) {
    uint64_t own = 0;
    for (uint64_t n = uint64_t{block.index()} * block.threads() + thread; n < words;
         n += uint64_t{block.blocks()} * block.threads())
      own += uint64_t{checksum_word<Unit>(job, n, block)} * checksum_factor(n);
    block.add(sum, own);
  });
  block.each([&](uint32_t thread) {
    if (thread == 0 && *sum != 0) block.add(reinterpret_cast<uint64_t*>(job.to), *sum);
  });
}

template <class Block>
FORESHOCK_DEVICE void checksum_body(const ChecksumJob& job, Block& block) {
  switch (power_dividing(job.from, 4)) {
    case 4:
      checksum_words<uint32_t>(job, block);
      break;
    case 2:
      // An odd number of bytes has no half for its last one.
      if (job.bytes % 2 == 0) {
        checksum_words<uint16_t>(job, block);
        break;
      }
      [[fallthrough]];
    default:
      checksum_words<uint8_t>(job, block);
  }
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_CHECKSUM_BODY_H_
