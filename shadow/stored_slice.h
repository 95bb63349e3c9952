// A slice as a file holds it: arrays by name. What writes such files and what reads them have this in common.
#ifndef FORESHOCK_SHADOW_STORED_SLICE_H_
#define FORESHOCK_SHADOW_STORED_SLICE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shadow/key_columns.h"
#include "shadow/reference.h"
#include "shadow/slice.h"

namespace foreshock {

// Borrowed, packed, row-major.
struct StoredArray {
  std::string type;  // as safetensors spells it: "BF16"
  std::vector<int64_t> shape;
  const void* data = nullptr;
  uint64_t bytes = 0;
};
using StoredArrays = std::map<std::string, StoredArray, std::less<>>;

// q [rows, head_dim], k [keys, head_dim], v [keys, value_dim], out [rows, value_dim], key_limit [rows]; where
// given, lse [rows], mask [rows, keys], dout as out, dq as q; and of the reference, in fp64, reference_out,
// reference_lse, reference_dq.
StoredArrays arrays_of(const AttentionSlice& slice, const Reference& reference);

// The slice that these arrays are; it borrows their data, which is aligned to 8 bytes. Nothing in them is
// trusted. An empty string (the slice is then valid, judgement.h), or what is wrong.
std::string slice_from(const StoredArrays& arrays, double scale, AttentionSlice* slice);

// Key positions: k and dk [columns, head_dim], v and dv [columns, value_dim], first_query [columns]; of all
// query rows, head by head, q [rows, head_dim], out and dout [rows, value_dim], lse [rows]; where given,
// key_sums [key_sum_count(), 3]: the fields of each ColumnSum; and in fp64 reference_dk, reference_dv.
// Borrows from all arguments; `sums` is filled.
StoredArrays arrays_of(const KeyColumns& columns, const ColumnReference& reference,
                       std::vector<double>* sums);

// As slice_from. `heads` share the kv-head of `keys` keys.
std::string columns_from(const StoredArrays& arrays, double scale, int heads, int64_t keys,
                         std::vector<ColumnSum>* sums, KeyColumns* columns);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_STORED_SLICE_H_
