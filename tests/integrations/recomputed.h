// Attention once more in fp64 from nothing but its description: what an operation returned differs from it by
// rounding, or it was described as what it is not.
#ifndef FORESHOCK_TESTS_INTEGRATIONS_RECOMPUTED_H_
#define FORESHOCK_TESTS_INTEGRATIONS_RECOMPUTED_H_

#include <foreshock/hook.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace recomputed {

inline double Element(const foreshock_tensor& tensor, int64_t offset) {
  if (tensor.dtype == FORESHOCK_FP32) return static_cast<const float*>(tensor.data)[offset];
  if (tensor.dtype == FORESHOCK_FP64) return static_cast<const double*>(tensor.data)[offset];
  if (tensor.dtype == FORESHOCK_FP16) return 0;
  if (tensor.dtype == FORESHOCK_BOOL) return static_cast<const uint8_t*>(tensor.data)[offset];
  if (tensor.dtype != FORESHOCK_BF16) return 0;
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(tensor.data)[offset]) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline double At(const foreshock_tensor& tensor, int64_t a, int64_t b, int64_t c, int64_t d) {
  return Element(tensor,
                 a * tensor.stride[0] + b * tensor.stride[1] + c * tensor.stride[2] + d * tensor.stride[3]);
}

// Norm of the difference over norm of the truth; NaN if anything is.
struct Difference {
  double off = 0, truth = 0;
  void Add(double found, double wanted) {
    off += (found - wanted) * (found - wanted);
    truth += wanted * wanted;
  }
  double relative() const { return truth > 0 ? std::sqrt(off / truth) : off; }
};

// -1: not there, or its shape does not fit.
struct Errors {
  double out = -1, log_sum_exp = -1, grad_query = -1;
};

// What dropout multiplies a weight by.
inline double KeepOf(const foreshock_attention_call& call, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (!call.kept.data || call.dropout == 0) return 1;
  return At(call.kept, b, h, i, j) != 0 ? 1 / (1 - call.dropout) : 0;
}

inline bool IsInWindow(const foreshock_attention_call& call, int64_t i, int64_t j) {
  if (call.window == FORESHOCK_CAUSAL_NONE) return true;
  const int64_t shift =
      call.window == FORESHOCK_CAUSAL_BOTTOM_RIGHT ? call.key.shape[2] - call.query.shape[2] : 0;
  return (call.window_left < 0 || j >= i + shift - call.window_left) &&
         (call.window_right < 0 || j <= i + shift + call.window_right);
}

// `slope`: the factor by which a soft cap multiplies the gradient of the score.
inline double ScoreOf(const foreshock_attention_call& call, int64_t b, int64_t h, int64_t i, int64_t j,
                      double* slope) {
  *slope = 1;
  const int64_t group = call.query.shape[1] / call.key.shape[1];
  const int64_t shift =
      call.causal == FORESHOCK_CAUSAL_BOTTOM_RIGHT ? call.key.shape[2] - call.query.shape[2] : 0;
  if (call.causal != FORESHOCK_CAUSAL_NONE && j > i + shift) return -INFINITY;
  if (!IsInWindow(call, i, j)) return -INFINITY;
  double score = 0;
  for (int64_t d = 0; d < call.query.shape[3]; ++d)
    score += At(call.query, b, h, i, d) * At(call.key, b, h / group, j, d);
  score *= call.scale;
  if (call.soft_cap > 0) {
    const double tanh = std::tanh(score / call.soft_cap);
    score = call.soft_cap * tanh;
    *slope = 1 - tanh * tanh;
  }
  if (!call.mask.data) return score;
  const double mask = At(call.mask, b, h, i, j);
  if (call.mask.dtype == FORESHOCK_BOOL) return mask != 0 ? score : -INFINITY;
  return score + mask;
}

inline bool HasShape(const foreshock_tensor& tensor, const foreshock_tensor& rows, int64_t width) {
  return tensor.data && std::equal(rows.shape, rows.shape + 3, tensor.shape) && tensor.shape[3] == width;
}

inline Errors ErrorsOfOne(const foreshock_attention_call& call) {
  Difference out, grad;
  Errors errors;
  const int64_t keys = call.key.shape[2], width = call.value.shape[3], dims = call.query.shape[3];
  const bool has_out = HasShape(call.out, call.query, width),
             has_lse = HasShape(call.log_sum_exp, call.query, 1),
             has_grad =
                 HasShape(call.grad_out, call.query, width) && HasShape(call.grad_query, call.query, dims);
  for (int64_t b = 0; b < call.query.shape[0]; ++b)
    for (int64_t h = 0; h < call.query.shape[1]; ++h)
      for (int64_t i = 0; i < call.query.shape[2]; ++i) {
        const int64_t kv = h * call.key.shape[1] / call.query.shape[1];
        std::vector<double> p(static_cast<size_t>(keys)), slope(p);
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < keys; ++j) most = std::max(most, p[j] = ScoreOf(call, b, h, i, j, &slope[j]));
        for (double& each : p) sum += each = std::exp(each - most);
        for (double& each : p) each /= sum;
        if (has_lse)
          errors.log_sum_exp =
              std::max(errors.log_sum_exp, std::abs(At(call.log_sum_exp, b, h, i, 0) - most - std::log(sum)));
        double delta = 0;
        for (int64_t d = 0; d < width && has_out; ++d) {
          double wanted = 0;
          for (int64_t j = 0; j < keys; ++j)
            wanted += p[j] * KeepOf(call, b, h, i, j) * At(call.value, b, kv, j, d);
          out.Add(At(call.out, b, h, i, d), wanted);
          if (has_grad) delta += At(call.grad_out, b, h, i, d) * At(call.out, b, h, i, d);
        }
        if (!has_grad) continue;
        std::vector<double> of_score(static_cast<size_t>(keys));
        for (int64_t j = 0; j < keys; ++j) {
          double dot = 0;
          for (int64_t d = 0; d < width; ++d)
            dot += At(call.grad_out, b, h, i, d) * At(call.value, b, kv, j, d);
          of_score[j] = p[j] * (dot * KeepOf(call, b, h, i, j) - delta) * slope[j] * call.scale;
        }
        for (int64_t d = 0; d < dims; ++d) {
          double wanted = 0;
          for (int64_t j = 0; j < keys; ++j) wanted += of_score[j] * At(call.key, b, kv, j, d);
          grad.Add(At(call.grad_query, b, h, i, d), wanted);
        }
      }
  if (has_out) errors.out = out.relative();
  if (has_grad) errors.grad_query = grad.relative();
  return errors;
}

// (head, position, d) as (1, head, position, d) of `length` positions from `first` on.
inline foreshock_tensor Positions(const foreshock_tensor& all, int64_t first, int64_t length) {
  foreshock_tensor one = all;
  if (!all.data) return one;
  const int64_t bytes = all.dtype == FORESHOCK_FP64                                  ? 8
                        : all.dtype == FORESHOCK_BF16 || all.dtype == FORESHOCK_FP16 ? 2
                                                                                     : 4;
  one.data = static_cast<const char*>(all.data) + first * all.stride[1] * bytes;
  const int64_t shape[] = {1, all.shape[0], length, all.shape[2]};
  const int64_t stride[] = {0, all.stride[0], all.stride[1], all.stride[2]};
  std::copy_n(shape, 4, one.shape);
  std::copy_n(stride, 4, one.stride);
  return one;
}

// Sequence n of a packed call, whose offsets the host can read, as a call of its own.
inline foreshock_attention_call SequenceOf(const foreshock_attention_call& call, int64_t n) {
  foreshock_attention_call one = call;
  const int64_t query = call.query_offsets[n], queries = call.query_offsets[n + 1] - query;
  const int64_t key = call.key_offsets[n], keys = call.key_offsets[n + 1] - key;
  for (foreshock_tensor* tensor : {&one.query, &one.out, &one.grad_out, &one.grad_query})
    *tensor = Positions(*tensor, query, queries);
  for (foreshock_tensor* tensor : {&one.key, &one.value}) *tensor = Positions(*tensor, key, keys);
  if (call.log_sum_exp.dims == 2) {
    one.log_sum_exp = Positions(call.log_sum_exp, query, queries);
  } else if (call.log_sum_exp.data) {
    one.log_sum_exp.data = static_cast<const float*>(call.log_sum_exp.data) + n * call.log_sum_exp.stride[0];
    one.log_sum_exp.shape[0] = 1;
    one.log_sum_exp.shape[2] = queries;
  }
  return one;
}

// Of packed sequences the worst of each that has queries.
inline Errors ErrorsOf(const foreshock_attention_call& call) {
  if (!call.query_offsets) return ErrorsOfOne(call);
  Errors worst;
  for (int64_t n = 0; n < call.sequences; ++n) {
    if (call.query_offsets[n + 1] == call.query_offsets[n]) continue;
    const Errors one = ErrorsOfOne(SequenceOf(call, n));
    const auto add = [](double* to, double error) { *to = error != error ? error : std::max(*to, error); };
    add(&worst.out, one.out);
    add(&worst.log_sum_exp, one.log_sum_exp);
    add(&worst.grad_query, one.grad_query);
  }
  return worst;
}

}  // namespace recomputed

#endif  // FORESHOCK_TESTS_INTEGRATIONS_RECOMPUTED_H_
