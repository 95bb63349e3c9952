// Recomputes the gradients dK and dV of sampled key positions (columns of the score matrix) from the inputs
// of a backward call: in fp64, and with the roundings of two correct algorithms.
//
//   P_ij = exp(s_ij + mask_ij - lse_i)
//   dV_j = sum_i P_ij D_ij dO_i
//   dK_j = scale sum_i P_ij (D_ij dO_i . v_j - delta_i) s'_ij q_i,   delta_i = dO_i . out_i
//
// P are the attention weights, dO is the gradient of out. s are the scores and s' their slopes, by which a
// soft cap multiplies gradients, and D is what dropout multiplies the weights by (slice.h). The sums run over
// all query positions i that see the key j (by a window and a mask), of all query heads that share its
// kv-head. lse (log_sum_exp) and out are those that the trainer passed to the call. If they cover more keys
// than the call (context parallelism), the results stay right.
#ifndef FORESHOCK_SHADOW_KEY_COLUMNS_H_
#define FORESHOCK_SHADOW_KEY_COLUMNS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/key_sums.h"
#include "shadow/slice.h"

namespace foreshock {

// Arrays are packed, row-major, borrowed for the call, aligned to 8 bytes. Rows are stored head by head.
struct KeyColumns {
  DType dtype = DType::kNone;  // of every array but log_sum_exp, mask and kept
  int columns = 0;             // 1..16 sampled key positions
  int heads = 0;               // all query heads that share the kv-head
  int queries = 0;             // all query positions of one head
  int head_dim = 0;
  int value_dim = 0;
  double scale = 0;
  double soft_cap = 0;  // above 0; 0: none
  // [columns]: the query positions [first_query[j], query_end[j]) see key j. query_end may be null: all from
  // first_query[j] on.
  const uint32_t *first_query = nullptr, *query_end = nullptr;

  const void* query = nullptr;        // [heads * queries][head_dim]
  const void* out = nullptr;          // [heads * queries][value_dim]
  const void* grad_out = nullptr;     // [heads * queries][value_dim]
  const void* log_sum_exp = nullptr;  // [heads * queries]
  DType log_sum_exp_dtype = DType::kNone;

  // [columns][heads * queries]; bool (nonzero: the row sees the key) or floating (added to the score; -Inf:
  // the row does not see the key); null: none.
  const void* mask = nullptr;
  DType mask_dtype = DType::kNone;

  // [columns][heads * queries]; nonzero: dropout kept the weight; null: no dropout.
  const void* kept = nullptr;
  DType kept_dtype = DType::kNone;
  double dropout = 0;  // probability of 0 to 1, both excluded; read only with `kept`

  const void* key = nullptr;         // [columns][head_dim]
  const void* value = nullptr;       // [columns][value_dim]
  const void* grad_key = nullptr;    // [columns][head_dim], the trainer's result
  const void* grad_value = nullptr;  // [columns][value_dim], the trainer's result

  // Null, or the key_sum_count() sums of key_sums.h over the trainer's dK, dV and dQ.
  const ColumnSum* sums = nullptr;
  int64_t keys = 0;  // keys of the call

  size_t rows() const { return static_cast<size_t>(heads) * queries; }
  uint32_t end_of(int column) const {
    return query_end != nullptr ? query_end[column] : static_cast<uint32_t>(queries);
  }
};

struct ColumnGradients {
  std::vector<double> grad_key;    // [columns][head_dim]
  std::vector<double> grad_value;  // [columns][value_dim]
};

// An object is reused for many slices; its vectors only grow. Use one per thread.
struct ColumnReference {
  ColumnGradients exact;  // in fp64
  // Noise floors (reference.h): results of two correct algorithms in the storage format, with sums in fp32
  // (fp64 for fp64 storage). `fused` rounds P before P multiplies dO, the gradients of the scores before they
  // multiply Q, and the results. `plain` also rounds scores, P and dO . v, and what reference.h says about
  // soft caps and dropout. Both use lse and out as given.
  ColumnGradients plain, fused;
  // [columns]: mean squared errors of a column that the roundings of fused give it, whatever their signs are.
  // The error of `fused` is one draw, and almost 0 by chance where the few weights of a column round well.
  ColumnGradients mean_square_error;
  std::vector<double> scratch;
};

// Returns what the mask adds to the score of a row and a sampled key: 0 without a mask, -Inf if the row does
// not see the key. Values beyond the range of T become the nearest number of T.
template <class T>
T mask_term(const KeyColumns& c, int column, size_t row) {
  constexpr T kHidden = -std::numeric_limits<T>::infinity();
  if (c.mask == nullptr) return 0;
  const size_t index = static_cast<size_t>(column) * c.rows() + row;
  if (c.mask_dtype == DType::kBool)
    return static_cast<const unsigned char*>(c.mask)[index] != 0 ? T{0} : kHidden;
  const double term = load_as_double(c.mask, c.mask_dtype, index);
  if (std::isinf(term)) return term < 0 ? kHidden : -kHidden;
  constexpr double kLargest = std::numeric_limits<T>::max();
  return static_cast<T>(std::clamp(term, -kLargest, kLargest));  // clamp() returns NaN for NaN
}

// Whether rows may exist that see no key of the call. Kernels write zeros, NaN or Inf for such a row into out
// and log_sum_exp, and some NaN into dK and dV.
bool may_have_rows_without_keys(const KeyColumns& columns);

// Whether the columns can be checked: formats are known, sizes are in range, and no array is null but `sums`,
// `mask` and `kept`.
bool is_valid(const KeyColumns& columns);

// Fills `exact`. `columns` must be valid. The result has the same bits on every CPU: each element is one
// chain of fused multiply-adds in the order of the rows; a row that does not see the key has weight 0.
// Infinities and NaN of the inputs propagate; those of query and grad_out to every column (0 * NaN is NaN).
void compute_exact(const KeyColumns& columns, ColumnReference* result);

// Computes the same bits one element at a time, without vectors. This is the definition of the result.
void compute_exact_scalar(const KeyColumns& columns, ColumnReference* result);

// Fills `plain`, `fused` and `mean_square_error`. `columns` must be valid.
void compute_floors(const KeyColumns& columns, ColumnReference* result);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_KEY_COLUMNS_H_
