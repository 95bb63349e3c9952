// Computes the log-sum-exp of the query rows of a slice of key positions, for an operation that returns the
// attention weights and no log-sum-exp: attention that is written out in operations of PyTorch.
#include <algorithm>
#include <limits>

#include "kernels/dtype.h"
#include "kernels/logarithm.h"
#include "libmonitor/call.h"

namespace foreshock {
namespace {

double element(const TensorView& view, int64_t batch, int64_t head, int64_t row, int64_t column) {
  return load_as_double(view.row(batch, head, row), view.dtype, static_cast<size_t>(column * view.stride[3]));
}

// The largest weight of a row, and its key. All weights may be 0: dropout has replaced them, or the row sees
// no key.
struct Largest {
  double weight = 0;
  int64_t key = 0;
};

template <class T>
Largest largest_in(const char* row, int64_t stride, int64_t keys) {
  T most = 0;
  int64_t at = 0;
  for (int64_t key = 0; key < keys; ++key) {
    const T weight = load_unaligned<T>(row + key * stride * static_cast<int64_t>(sizeof(T)));
    if (weight > most) most = weight, at = key;
  }
  return {static_cast<double>(most), at};
}

Largest largest_weight(const TensorView& weights, int64_t batch, int64_t head, int64_t row) {
  const char* data = weights.row(batch, head, row);
  const int64_t stride = weights.stride[3], keys = weights.shape[3];
  if (weights.dtype == DType::kFp64) return largest_in<double>(data, stride, keys);
  if (weights.dtype == DType::kFp32) return largest_in<float>(data, stride, keys);
  // Weights are not negative, so the bits of 16-bit formats are in the order of the numbers.
  const Largest found = largest_in<uint16_t>(data, stride, keys);
  return {element(weights, batch, head, row, found.key), found.key};
}

}  // namespace

// A weight is exp(score - log_sum_exp) / (1 - dropout), which is solved for log_sum_exp. The largest weight
// has the smallest relative error, half a spacing of its format, which is the absolute error of the result.
// For a row without a weight the result is +Inf, with which all its weights are 0.
void log_sum_exp_of_weights(const ValidatedCall& call, const Slice& slice, int64_t first, int64_t count,
                            double* to) {
  const int64_t queries = call.shape.queries;
  for (int64_t n = first; n < first + count; ++n) {
    const int64_t head = slice.first_head + n / queries, row = n % queries;
    const Largest largest = largest_weight(call.weights, slice.batch, head, row);
    double score = 0;
    for (int64_t k = 0; k < call.head_dim; ++k)
      score += element(call.query, slice.batch, head, row, k) *
               element(call.key, slice.batch, slice.kv_head, largest.key, k);
    score *= call.scale;
    if (call.mask.data && is_floating(call.mask.dtype))
      score += element(call.mask, slice.batch, head, row, largest.key);
    *to++ = largest.weight > 0 ? score - log_nonnegative(largest.weight * (1 - call.dropout))
                               : std::numeric_limits<double>::infinity();
  }
}

}  // namespace foreshock
