// The data of one sampled slice of an attention call: the sampled query rows, all keys that they see, the
// results of the trainer's kernel, the mask and window of the scores, and what dropout has kept, with
// functions to apply them. For query row i and key j:
//
//   x = scale q_i . k_j,   s = soft_cap tanh(x / soft_cap), or x without a soft cap
//   P = softmax over the keys of s + mask,   D_ij = 1 / (1 - dropout) where kept, else 0; 1 without dropout
//   out_i = sum_j P_ij D_ij v_j,   delta_i = dO_i . out_i,   dS_ij = P_ij (D_ij dO_i . v_j - delta_i)
//   dQ_i = scale sum_j dS_ij (1 - tanh^2(x / soft_cap)) k_j
//
// Scores are s: the values before dropout, after the soft cap.
#ifndef FORESHOCK_SHADOW_SLICE_H_
#define FORESHOCK_SHADOW_SLICE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/dtype.h"

namespace foreshock {

inline constexpr int kMaxSliceRows = 16;  // a row is one query position of one query head

// Grows `values` to at least `size` elements. The vectors that receive results are reused for many slices and
// never shrink, so they may be larger than the shape in the comment beside their declaration.
inline void resize_up(std::vector<double>* values, size_t size) {
  if (values->size() < size) values->resize(size);
}

// All arrays are dense, row-major, borrowed for the call, and aligned to 8 bytes. Rows of one slice share
// batch element and key/value head (several query heads may read one), and therefore keys and values.
struct AttentionSlice {
  DType dtype = DType::kNone;  // of every floating array but log_sum_exp, mask and kept
  int rows = 0;                // 1..kMaxSliceRows
  int keys = 0;
  bool lacks_keys = false;  // the call has further keys, which no row sees, and they may have NaN
  int head_dim = 0;
  int value_dim = 0;
  double scale = 0;     // factor of the products query . key
  double soft_cap = 0;  // above 0; 0: none
  // [rows]: row r sees keys [key_begin[r], key_limit[r]); expresses causal masks and windows. key_begin may
  // be null: all 0.
  const uint32_t *key_begin = nullptr, *key_limit = nullptr;

  const void* query = nullptr;  // [rows][head_dim]
  const void* key = nullptr;    // [keys][head_dim]
  const void* value = nullptr;  // [keys][value_dim]
  // [rows][value_dim], the trainer's result. Null (forward only): dropout changed it, and it is not known
  // which weights were kept, so that only the scores can be checked.
  const void* out = nullptr;

  const void* log_sum_exp = nullptr;  // [rows], the trainer's; null: not given
  DType log_sum_exp_dtype = DType::kNone;

  const void* mask = nullptr;  // [rows][keys]; bool (nonzero: visible) or additive floating; null: none
  DType mask_dtype = DType::kNone;

  const void* kept = nullptr;  // [rows][keys]; nonzero: dropout kept the weight; null: no dropout
  DType kept_dtype = DType::kNone;
  double dropout = 0;  // probability of 0 to 1, both excluded; read only with `kept`

  const void* grad_out = nullptr;    // [rows][value_dim]; null: a forward slice
  const void* grad_query = nullptr;  // [rows][head_dim], the trainer's result; null: a forward slice

  bool backward() const { return grad_query != nullptr; }
  uint32_t first_key(int row) const { return key_begin != nullptr ? key_begin[row] : 0; }
};

// Returns what dropout multiplies the kept weights by. `slice`: an AttentionSlice or KeyColumns.
template <class SliceType>
double keep_factor(const SliceType& slice) {
  return slice.kept == nullptr ? 1 : 1 / (1 - slice.dropout);
}

// Whether dropout has kept weight `index` of `slice`, an AttentionSlice or KeyColumns.
template <class SliceType>
bool is_kept(const SliceType& slice, size_t index) {
  if (slice.kept == nullptr) return true;
  if (slice.kept_dtype == DType::kBool) return static_cast<const unsigned char*>(slice.kept)[index] != 0;
  return load_as_double(slice.kept, slice.kept_dtype, index) != 0;
}

// Whether soft cap and dropout of `slice`, an AttentionSlice or KeyColumns, are in range.
template <class SliceType>
bool has_valid_rules(const SliceType& slice) {
  if (!(slice.soft_cap >= 0 && slice.soft_cap <= std::numeric_limits<double>::max())) return false;
  if (slice.kept == nullptr) return true;
  return (slice.kept_dtype == DType::kBool || is_floating(slice.kept_dtype)) && slice.dropout > 0 &&
         slice.dropout < 1;
}

// Multiplies the weights of keys [first, first + count) by 1 where dropout kept them and by 0 elsewhere. They
// are stored as weights[key - first][row] with `stride` elements from one key to the next.
template <class T>
void apply_dropout(const AttentionSlice& slice, int first, int count, size_t stride, T* weights) {
  if (slice.kept == nullptr) return;
  for (int row = 0; row < slice.rows; ++row)
    for (int t = 0; t < count; ++t)
      if (!is_kept(slice, static_cast<size_t>(row) * slice.keys + first + t)) weights[t * stride + row] *= 0;
}

// Applies mask and window to the score of (row, key). Returns -Inf if the row does not see the key.
template <class T>
T masked_score(const AttentionSlice& slice, int row, int key, T score) {
  const auto position = static_cast<uint32_t>(key);
  if (position >= slice.key_limit[row] || position < slice.first_key(row))
    return -std::numeric_limits<T>::infinity();
  if (slice.mask == nullptr) return score;
  const size_t index = static_cast<size_t>(row) * slice.keys + key;
  if (slice.mask_dtype == DType::kBool) {
    return static_cast<const unsigned char*>(slice.mask)[index] != 0 ? score
                                                                     : -std::numeric_limits<T>::infinity();
  }
  return score + static_cast<T>(load_as_double(slice.mask, slice.mask_dtype, index));
}

// Applies mask and window to the scores of keys [first, first + count), stored as scores[key - first][row]
// with `stride` elements from one key to the next. Skips rows that have no mask and see all these keys.
template <class T>
void apply_mask(const AttentionSlice& slice, int first, int count, size_t stride, T* scores) {
  for (int row = 0; row < slice.rows; ++row) {
    if (slice.mask == nullptr && slice.key_limit[row] >= static_cast<uint32_t>(first + count) &&
        slice.first_key(row) <= static_cast<uint32_t>(first))
      continue;
    for (int t = 0; t < count; ++t) {
      T& score = scores[t * stride + row];
      score = masked_score(slice, row, first + t, score);
    }
  }
}

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_SLICE_H_
