// Attention in binary128, as the formulas stand in a book: the truth the reference is held to.
#ifndef FORESHOCK_TESTS_SHADOW_QUAD_ATTENTION_H_
#define FORESHOCK_TESTS_SHADOW_QUAD_ATTENTION_H_

#include <vector>

#include "tests/shadow/binary128.h"
#include "tests/shadow/slice_data.h"

namespace foreshock {

struct QuadRow {
  std::vector<Binary128> out, grad_query, given_grad_query;
  Binary128 log_sum_exp, entropy;
  double logit_max, logit_abs_max;
};

inline QuadRow quad_attention(const SliceData& data, int row) {
  const AttentionSlice s = data.view();
  std::vector<Binary128> score, weight, slope, keep;
  std::vector<int> seen;
  for (int j = 0; j < s.keys; ++j) {
    if (static_cast<uint32_t>(j) >= s.key_limit[row] || static_cast<uint32_t>(j) < s.first_key(row)) continue;
    const size_t at = static_cast<size_t>(row) * s.keys + j;
    if (s.mask_dtype == DType::kBool && static_cast<const unsigned char*>(s.mask)[at] == 0) continue;
    Binary128 sum = 0;
    for (int k = 0; k < s.head_dim; ++k) {
      sum += static_cast<Binary128>(data.query.get(row * s.head_dim + k)) *
             data.key.get(size_t(j) * s.head_dim + k);
    }
    sum *= s.scale;
    const Binary128 tanh = s.soft_cap != 0 ? tanhq(sum / s.soft_cap) : 0;
    if (s.soft_cap != 0) sum = s.soft_cap * tanh;
    if (s.mask != nullptr && s.mask_dtype != DType::kBool) sum += data.mask.get(at);
    if (isinfq(sum)) continue;
    score.push_back(sum);
    slope.push_back(1 - tanh * tanh);
    keep.push_back(is_kept(s, at) ? 1 / (s.kept != nullptr ? 1 - static_cast<Binary128>(s.dropout) : 1) : 0);
    seen.push_back(j);
  }
  QuadRow result{std::vector<Binary128>(s.value_dim),
                 std::vector<Binary128>(s.head_dim),
                 std::vector<Binary128>(s.head_dim),
                 0,
                 0,
                 -INFINITY,
                 0};
  Binary128 max = score.at(0), total = 0;
  for (const Binary128 x : score) {
    max = x > max ? x : max;
    result.logit_max = std::fmax(result.logit_max, static_cast<double>(x));
    result.logit_abs_max = std::fmax(result.logit_abs_max, std::fabs(static_cast<double>(x)));
  }
  for (const Binary128 x : score) {
    weight.push_back(expq(x - max));
    total += weight.back();
  }
  result.log_sum_exp = max + logq(total);
  for (size_t i = 0; i < seen.size(); ++i) {
    weight[i] /= total;
    if (weight[i] > 0) result.entropy -= weight[i] * logq(weight[i]);
    for (int c = 0; c < s.value_dim; ++c)
      result.out[c] += weight[i] * keep[i] * data.value.get(size_t(seen[i]) * s.value_dim + c);
  }
  Binary128 delta = 0, given_delta = 0;
  for (int c = 0; c < s.value_dim; ++c) {
    const Binary128 grad_out = data.grad_out.get(row * s.value_dim + c);
    delta += grad_out * result.out[c];
    given_delta += grad_out * data.out.get(row * s.value_dim + c);
  }
  const Binary128 given = s.log_sum_exp != nullptr ? data.log_sum_exp.get(row) : result.log_sum_exp;
  for (size_t i = 0; i < seen.size(); ++i) {
    Binary128 grad_weight = 0;
    for (int c = 0; c < s.value_dim; ++c) {
      grad_weight += static_cast<Binary128>(data.grad_out.get(row * s.value_dim + c)) *
                     data.value.get(size_t(seen[i]) * s.value_dim + c);
    }
    grad_weight *= keep[i];
    const Binary128 factor = slope[i] * s.scale;
    const Binary128 grad_score = weight[i] * (grad_weight - delta) * factor;
    const Binary128 given_grad_score = expq(score[i] - given) * (grad_weight - given_delta) * factor;
    for (int k = 0; k < s.head_dim; ++k) {
      const Binary128 key = data.key.get(size_t(seen[i]) * s.head_dim + k);
      result.grad_query[k] += grad_score * key;
      result.given_grad_query[k] += given_grad_score * key;
    }
  }
  return result;
}

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_SHADOW_QUAD_ATTENTION_H_
