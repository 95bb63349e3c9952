// The operands of attention's products. Only fp8 needs anything done: one scale per tensor, as frameworks do
// it.
#ifndef FORESHOCK_LAB_ATTENTION_OPERANDS_H_
#define FORESHOCK_LAB_ATTENTION_OPERANDS_H_

#include "lab/algorithm.h"

namespace foreshock::lab {

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

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ATTENTION_OPERANDS_H_
