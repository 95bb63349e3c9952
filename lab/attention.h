// Attention algorithms, which all compute out = softmax(scale * query . key^T) . value. Family::kAttention in
// algorithm.h lists inputs and outputs. P is exp(score - maximum of the row); in the backward pass P is
// divided by the sum of its row. Values "in the format" are rounded to the format of stored tensors
// (Arithmetic::storage()), values "in registers" to fp32 (Arithmetic::in_register()).
#ifndef FORESHOCK_LAB_ATTENTION_H_
#define FORESHOCK_LAB_ATTENTION_H_

#include "lab/algorithm.h"

namespace foreshock::lab {

// The operands of attention's products, for the algorithms below that store intermediate results in the
// format. In fp8, quantise() of arithmetic.h scales and casts each input. All rows of an input get one scale,
// as in frameworks; the code reads that of row 0. In other formats the inputs are unchanged and the scales
// are 1.
struct AttentionOperands {
  Tensor query, key, value;
  double score_scale;  // factor from query . key to the scores, the softmax scale included
  double value_scale;  // factor from P . value to the output
};

inline AttentionOperands attention_operands(const Tensors& inputs, const Settings& settings,
                                            Arithmetic& arithmetic) {
  AttentionOperands x{inputs.at("query"), inputs.at("key"), inputs.at("value"), settings.scale, 1};
  x.score_scale *= quantise(arithmetic, x.query, x.query.rows)[0];
  x.score_scale *= quantise(arithmetic, x.key, x.key.rows)[0];
  x.value_scale = quantise(arithmetic, x.value, x.value.rows)[0];
  return x;
}

// The first key of each tile, in the order in which the tiles are processed.
inline std::vector<int> key_tiles(int keys, const Tiling& tiling) {
  std::vector<int> first;
  for (int key = 0; key < keys; key += tiling.block_k) first.push_back(key);
  return tiling.reverse ? std::vector<int>(first.rbegin(), first.rend()) : first;
}

// Unfused attention: scores, probabilities and output are stored, softmax works in registers.
Tensors attention_plain(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-1 as a sequence of tensor operations, as studied in arXiv 2405.02803. Every intermediate,
// including the normalised running output, is stored in the format after every tile.
Tensors flash_reimplemented(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-2 with running maximum, sum and output in the format.
Tensors flash2_reimplemented(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// flash2_reimplemented, but if several scores of a row and tile are about the maximum, a larger value is
// subtracted (arXiv 2510.04212, algorithm 1).
Tensors flash2_dynamic_max(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-2 as shipped: maximum, sum and output are in registers. P . value uses P cast to the format;
// the sum of P uses P before the cast.
Tensors flash2_shipped(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// flash2_shipped, but the sum uses P after the cast. If the largest scores of a row are nearly equal, the
// error of flash2_shipped has the same sign in most such rows; the sum after the cast removes this bias.
Tensors flash2_cast_sum(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// flash2_shipped with FlashAttention-4's lazy rescaling: a maximum is replaced only if exp(new - old) > 2^8.
Tensors flash4_lazy(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// FlashAttention-3 in fp8: one scale per tile of query, key, value; P is multiplied by 2^8 before its cast.
Tensors flash3_fp8(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);
// flash2_shipped on each of several parts of the keys; the results are merged by log-sum-exp in registers.
Tensors split_k(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic);

// Where the backward pass keeps its intermediate results: stored in the format, or in registers.
enum class Intermediates { kStored, kInRegisters };

// Adds delta, grad_query, grad_key and grad_value to `results`, which must have out and log_sum_exp. delta is
// the number that is subtracted from a row of P's gradient (DeltaSource in algorithm.h).
// Recomputes P as exp(score - log_sum_exp), as kernels do. With kStored each product, the scaled scores, P
// and delta are stored in the format, and gradients are accumulated in the format tile by tile. With
// kInRegisters all of these stay in registers; only operands of products and final gradients are rounded to
// the format.
void attention_backward(const Tensors& inputs, const Settings& settings, Intermediates intermediates,
                        Arithmetic& arithmetic, Tensors& results);

// The same with P from the forward pass, as in unfused attention: `probabilities` [query row][key].
void attention_backward_from(const Tensor& probabilities, const Tensors& inputs, const Settings& settings,
                             Intermediates intermediates, Arithmetic& arithmetic, Tensors& results);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ATTENTION_H_
