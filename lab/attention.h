// Attention algorithms. Inputs and outputs as in algorithm.h (family attention); all of them compute
// out = softmax(scale * query . key^T) . value.
#ifndef FORESHOCK_LAB_ATTENTION_H_
#define FORESHOCK_LAB_ATTENTION_H_

#include "lab/algorithm.h"

namespace foreshock::lab {

// The operands of attention's products. Only fp8 needs anything done: one scale per tensor, as frameworks do
// it.
struct AttentionOperands {
  Tensor query, key, value;
  double score_scale;  // from query . key to the scores, the softmax scale included
  double value_scale;  // from P . value to the output
};

inline AttentionOperands attention_operands(const Tensors& inputs, const Settings& settings,
                                            Arithmetic& arithmetic) {
  AttentionOperands x{inputs.at("query"), inputs.at("key"), inputs.at("value"), settings.scale, 1};
  x.score_scale *= quantise(arithmetic, x.query, x.query.rows)[0];
  x.score_scale *= quantise(arithmetic, x.key, x.key.rows)[0];
  x.value_scale = quantise(arithmetic, x.value, x.value.rows)[0];
  return x;
}

// First key of each tile, in the order in which the tiles are taken.
inline std::vector<int> key_tiles(int keys, const Tiling& tiling) {
  std::vector<int> first;
  for (int key = 0; key < keys; key += tiling.block_k) first.push_back(key);
  return tiling.reverse ? std::vector<int>(first.rbegin(), first.rend()) : first;
}

// Unfused: scores, probabilities and output are stored in the format, softmax works in registers.
Tensors attention_plain(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-1 re-implemented tensor by tensor: *every* intermediate, the normalised running output
// included, is stored in the format after every tile. The object of arXiv 2405.02803.
Tensors flash_reimplemented(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-2 with running maximum, sum and output in the format.
Tensors flash2_reimplemented(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// The same with the maximum shifted where it is repeated (arXiv 2510.04212, algorithm 1).
Tensors flash2_dynamic_max(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-2 as shipped: registers hold all state, P is cast for the second product, the sum takes P
// uncast.
Tensors flash2_shipped(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// The same, the sum taken from the cast P: what the near-tie bias of flash2_shipped goes away with.
Tensors flash2_cast_sum(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-4's lazy rescaling: the maximum is renewed only when it grew by more than a factor 2^8.
Tensors flash4_lazy(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-3 in fp8: query, key and value quantised with one scale per tile, P shifted by 2^8 before
// its cast.
Tensors flash3_fp8(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// Keys split into parts, each flash2_shipped, merged by their log-sum-exp in registers.
Tensors split_k(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);

// The backward pass shared by the attention algorithms.

// Where intermediate results of an algorithm live.
enum class State { kFormat, kRegisters };

// Adds delta, grad_query, grad_key and grad_value to `results`, which holds out and log_sum_exp. P is
// recomputed as exp(score - log_sum_exp), as kernels do. With State::kFormat every intermediate is stored in
// the format and gradients are accumulated in it tile by tile; with kRegisters only what enters a product is
// cast.
void attention_backward(const Tensors& inputs, const Settings& settings, State state, Arithmetic& arithmetic,
                        Tensors& results);

// The same with `probabilities` [rows][n] kept from the forward pass, as unfused attention does.
void attention_backward_from(const Tensor& probabilities, const Tensors& inputs, const Settings& settings,
                             State state, Arithmetic& arithmetic, Tensors& results);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ATTENTION_H_
