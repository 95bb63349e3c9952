// Chooses what is sampled of a batch: the sequence of a packed batch (sequences of different lengths, stored
// one after the other without padding), and the positions in a sequence. Compiled for host and device.
#ifndef FORESHOCK_KERNELS_PACKED_H_
#define FORESHOCK_KERNELS_PACKED_H_

#include <cstdint>

#include "kernels/block.h"
#include "kernels/dtype.h"

namespace foreshock {

// A packed batch (sequences stored one after the other without padding) and the choice of the sequence to
// sample: the one that contains the query position at the fraction (`place` / 2^32) of all query positions.
// The offsets may be readable only on the device, so find_sequence() is compiled for host and device.
//
// Sequence n has the query positions from query offset n up to, but not including, query offset n + 1. Its
// key positions follow from the key offsets in the same way.
struct PackedSequences {
  uint64_t query_offsets, key_offsets;  // addresses of int32_t[count + 1]
  uint32_t count;                       // 0: not packed
  uint32_t queries, keys;               // numbers of positions of all sequences together, at most 2^31
  uint32_t longest_query, longest_key;  // positions; a longer sequence is not sampled
  uint32_t place;
};
static_assert(sizeof(PackedSequences) == 40);

// The chosen sequence: its index in the batch, and where its query and key positions are.
struct SequencePlace {
  uint32_t number = 0;              // the index
  uint32_t query = 0, queries = 0;  // first query position, number of them (0: no sequence was chosen)
  uint32_t key = 0, keys = 0;       // first key position, number of them
};

// Finds the sequence that batch.place chooses, by bisection. If `place` is uniform, every query position is
// equally likely and an empty sequence is never chosen. `memory` reads the offsets, which may be invalid. The
// result lies within batch.queries and batch.keys. It has no positions if the first and last query offsets,
// or those of the sequence, are negative, do not increase or are too large, or if the sequence is too long.
template <class Memory>
FORESHOCK_DEVICE SequencePlace find_sequence(const PackedSequences& batch, const Memory& memory) {
  const auto offset = [&memory](uint64_t offsets, uint32_t n) {
    return int64_t{memory.template load<int32_t>(offsets + sizeof(int32_t) * uint64_t{n})};
  };
  int64_t begin = offset(batch.query_offsets, 0), end = offset(batch.query_offsets, batch.count);
  if (begin < 0 || end <= begin || end > batch.queries) return {};
  const int64_t wanted = begin + static_cast<int64_t>(static_cast<uint64_t>(end - begin) * batch.place >> 32);
  // Invariant: sequence `low` begins at `begin` <= wanted; sequence `high` - 1 ends at `end` > wanted.
  uint32_t low = 0, high = batch.count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const int64_t middle_begin = offset(batch.query_offsets, middle);
    if (middle_begin <= wanted) {
      low = middle;
      begin = middle_begin;
    } else {
      high = middle;
      end = middle_begin;
    }
  }
  const int64_t key = offset(batch.key_offsets, low), key_end = offset(batch.key_offsets, low + 1);
  if (begin < 0 || end > batch.queries || end - begin > batch.longest_query || key < 0 || key_end <= key ||
      key_end > batch.keys || key_end - key > batch.longest_key)
    return {};
  return {.number = low,
          .query = static_cast<uint32_t>(begin),
          .queries = static_cast<uint32_t>(end - begin),
          .key = static_cast<uint32_t>(key),
          .keys = static_cast<uint32_t>(key_end - key)};
}

// Divides a sequence of `length` positions into `parts` equal parts and returns the position at `fraction` /
// 2^32 of part n. `parts` must not exceed `length`. A smaller `length` never gives a larger position. With a
// causal mask a later position sees more keys, so a slot that is planned for the longest sequence fits every
// other sequence.
constexpr uint64_t position_in_part(uint64_t length, uint32_t n, uint32_t parts, uint32_t fraction) {
  const uint64_t begin = length * n / parts, end = length * (n + 1) / parts;
  return begin + ((end - begin) * fraction >> 32);
}

// Host memory as find_sequence() reads it: any address, aligned or not.
struct HostMemory {
  template <class T>
  T load(uint64_t address) const {
    return load_unaligned<T>(reinterpret_cast<const void*>(address));
  }
};

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_PACKED_H_
