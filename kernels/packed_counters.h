// The counters of histogram.h as a few bytes for each that is not zero. No heap, no statics: safe inside a
// trainer.
#ifndef FORESHOCK_KERNELS_PACKED_COUNTERS_H_
#define FORESHOCK_KERNELS_PACKED_COUNTERS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/histogram.h"

namespace foreshock {

// Every number as a variable-length integer, seven bits a byte, lowest first. For each counter that is not
// zero, in their order: its distance (>= 1) from the one before, or from -1; the count; of a bin also the sum
// of its residuals. A distance of 0 ends a set of counters; what follows is another one of the same tensor.

inline constexpr size_t kPackFailed = ~size_t{0};

// Pack one set, its end included, and zero it. Returns the bytes written, or kPackFailed when `room` is too
// small; the counters are zero then too. Patterns may be in fewer sets of counters than histogram.h makes.
size_t pack_patterns(uint32_t* words, char* to, size_t room, size_t sets = kPatternSets);
size_t pack_bins(uint64_t* words, char* to, size_t room);

// Add one set to counters that are zero and move *bytes behind it. False for anything that cannot have been
// packed from counters of at most `most` values; the counters may hold anything then. Nothing is trusted.
bool unpack_patterns(std::span<const std::byte>* bytes, uint64_t most, uint32_t* words);
bool unpack_bins(std::span<const std::byte>* bytes, uint64_t most, uint64_t* words);

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_PACKED_COUNTERS_H_
