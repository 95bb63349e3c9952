// The explicit mask of a slice, applied to a tile of scores.
#ifndef FORESHOCK_SHADOW_MASK_H_
#define FORESHOCK_SHADOW_MASK_H_

#include <limits>

#include "shadow/slice.h"

namespace foreshock {

// The score of (row, key) after mask and key limit: -Inf where the row does not see the key.
template <class T>
T masked_score(const AttentionSlice& slice, int row, int key, T score) {
  if (static_cast<uint32_t>(key) >= slice.key_limit[row]) return -std::numeric_limits<T>::infinity();
  if (slice.mask == nullptr) return score;
  const size_t index = static_cast<size_t>(row) * slice.keys + key;
  if (slice.mask_dtype == DType::kBool) {
    return static_cast<const unsigned char*>(slice.mask)[index] != 0 ? score
                                                                     : -std::numeric_limits<T>::infinity();
  }
  return score + static_cast<T>(load_as_double(slice.mask, slice.mask_dtype, index));
}

// Applies it to scores[key - first][row], row stride `stride`, of keys [first, first + count).
template <class T>
void apply_mask(const AttentionSlice& slice, int first, int count, size_t stride, T* scores) {
  for (int row = 0; row < slice.rows; ++row) {
    if (slice.mask == nullptr && slice.key_limit[row] >= static_cast<uint32_t>(first + count)) continue;
    for (int t = 0; t < count; ++t) {
      T& score = scores[t * stride + row];
      score = masked_score(slice, row, first + t, score);
    }
  }
}

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_MASK_H_
