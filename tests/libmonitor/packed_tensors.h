// A call on fp32 sequences packed one after the other, and each of them as a call of its own.
#ifndef FORESHOCK_TESTS_LIBMONITOR_PACKED_TENSORS_H_
#define FORESHOCK_TESTS_LIBMONITOR_PACKED_TENSORS_H_

#include <algorithm>
#include <vector>

#include "foreshock/hook.h"

namespace foreshock {

struct PackedTensors {
  static constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 6;
  std::vector<int32_t> queries, keys;  // offsets
  std::vector<float> query, key, value, out, sums, grad_out, grad_query, grad_key, grad_value;
  bool lse_by_sequence = false;
  int64_t longest_query = 0, longest_key = 0;
  foreshock_attention_call call = {};

  static std::vector<int32_t> offsets_of(const std::vector<int32_t>& lengths) {
    std::vector<int32_t> offsets = {0};
    for (const int32_t length : lengths) offsets.push_back(offsets.back() + length);
    return offsets;
  }

  // (position, head, dimension) in memory, as (head, position, dimension).
  static foreshock_tensor tensor(std::vector<float>* storage, int64_t heads, int64_t length, int seed) {
    storage->resize(static_cast<size_t>(heads * length * kDim));
    for (float& value : *storage) value = 0.01f * static_cast<float>((++seed * 7919) % 211 - 100);
    return {storage->data(),
            {heads, length, kDim, 1},
            {kDim, heads * kDim, 1, 0},
            FORESHOCK_FP32,
            3,
            FORESHOCK_DEVICE_CPU,
            0};
  }

  void build(const std::vector<int32_t>& query_lengths, const std::vector<int32_t>& key_lengths,
             bool backward) {
    queries = offsets_of(query_lengths);
    keys = offsets_of(key_lengths);
    longest_query = *std::max_element(query_lengths.begin(), query_lengths.end());
    longest_key = *std::max_element(key_lengths.begin(), key_lengths.end());
    const int64_t n = queries.back(), m = keys.back();
    call.size = sizeof call;
    call.version = FORESHOCK_ABI_VERSION;
    call.scale = 0.5;
    call.query = tensor(&query, kHeads, n, 0);
    call.key = tensor(&key, kKvHeads, m, 1000);
    call.value = tensor(&value, kKvHeads, m, 2000);
    call.out = tensor(&out, kHeads, n, 3000);
    const auto sequences = static_cast<int64_t>(query_lengths.size());
    const int64_t row = longest_query + 3;  // rows are longer than the longest
    sums.resize(static_cast<size_t>(kHeads * (lse_by_sequence ? sequences * row : n)));
    for (size_t index = 0; index < sums.size(); ++index) sums[index] = 0.5f * static_cast<float>(index);
    call.log_sum_exp = {
        sums.data(), {kHeads, n, 1, 1}, {n, 1, 0, 0}, FORESHOCK_FP32, 2, FORESHOCK_DEVICE_CPU, 0};
    if (lse_by_sequence)
      call.log_sum_exp = {sums.data(),
                          {sequences, kHeads, row, 1},
                          {kHeads * row, row, 1, 0},
                          FORESHOCK_FP32,
                          3,
                          FORESHOCK_DEVICE_CPU,
                          0};
    if (backward) {
      call.grad_out = tensor(&grad_out, kHeads, n, 4000);
      call.grad_query = tensor(&grad_query, kHeads, n, 5000);
      call.grad_key = tensor(&grad_key, kKvHeads, m, 6000);
      call.grad_value = tensor(&grad_value, kKvHeads, m, 7000);
    }
    call.query_offsets = queries.data();
    call.key_offsets = keys.data();
    call.sequences = sequences;
    call.longest_query = longest_query;
    call.longest_key = longest_key;
  }

  // The call of sequence `number` by itself.
  foreshock_attention_call alone(size_t number) const {
    foreshock_attention_call one = call;
    const auto narrow = [](foreshock_tensor* tensor, int32_t begin, int32_t end) {
      if (tensor->data == nullptr) return;
      const foreshock_tensor all = *tensor;
      tensor->data = static_cast<const float*>(all.data) + begin * all.stride[1];
      const int64_t shape[] = {1, all.shape[0], end - begin, all.shape[2]};
      const int64_t stride[] = {0, all.stride[0], all.stride[1], all.stride[2]};
      std::copy_n(shape, 4, tensor->shape);
      std::copy_n(stride, 4, tensor->stride);
      tensor->dims = 4;
    };
    const int32_t begin = queries[number], end = queries[number + 1];
    for (foreshock_tensor* tensor : {&one.query, &one.out, &one.grad_out, &one.grad_query})
      narrow(tensor, begin, end);
    for (foreshock_tensor* tensor : {&one.key, &one.value, &one.grad_key, &one.grad_value})
      narrow(tensor, keys[number], keys[number + 1]);
    if (!lse_by_sequence) {
      narrow(&one.log_sum_exp, begin, end);
    } else {
      one.log_sum_exp.data = static_cast<const float*>(one.log_sum_exp.data) +
                             static_cast<int64_t>(number) * one.log_sum_exp.stride[0];
      one.log_sum_exp.shape[0] = 1;
      one.log_sum_exp.shape[2] = end - begin;
    }
    one.log_sum_exp.dims = 3;
    one.query_offsets = one.key_offsets = nullptr;
    return one;
  }
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_PACKED_TENSORS_H_
