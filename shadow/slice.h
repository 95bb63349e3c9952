// What is needed to judge one sampled slice of one attention call: the rows that were sampled, all the keys
// they see, and what the trainer's kernel made of them.
#ifndef FORESHOCK_SHADOW_SLICE_H_
#define FORESHOCK_SHADOW_SLICE_H_

#include <cstdint>

#include "kernels/dtype.h"

namespace foreshock {

inline constexpr int kMaxSliceRows = 16;

// All arrays are packed, row-major, borrowed for the call, aligned to 8 bytes. Rows of one slice share batch
// and kv-head, hence keys and values.
struct AttentionSlice {
  DType dtype = DType::kNone;  // of every floating array but log_sum_exp and mask
  int rows = 0;                // 1..16
  int keys = 0;
  int head_dim = 0;
  int value_dim = 0;
  double scale = 0;
  const uint32_t* key_limit = nullptr;  // [rows]: row r sees keys [0, key_limit[r]); causal masks end up here

  const void* query = nullptr;  // [rows][head_dim]
  const void* key = nullptr;    // [keys][head_dim]
  const void* value = nullptr;  // [keys][value_dim]
  // [rows][value_dim], the trainer's result; null: dropout has changed it, and only scores are judged
  // (forward only).
  const void* out = nullptr;

  const void* log_sum_exp = nullptr;  // [rows], the trainer's; null: not given
  DType log_sum_exp_dtype = DType::kNone;

  const void* mask = nullptr;  // [rows][keys]; bool (nonzero: visible) or additive floating; null: none
  DType mask_dtype = DType::kNone;

  const void* grad_out = nullptr;    // [rows][value_dim]; null: a forward slice
  const void* grad_query = nullptr;  // [rows][head_dim], the trainer's result; null: a forward slice

  bool backward() const { return grad_query != nullptr; }
};

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_SLICE_H_
