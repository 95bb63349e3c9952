// Converts between slices (the copied parts of attention calls) and the named arrays of a safetensors file.
// The agent writes such files for unusual slices (--save-flagged); `foreshock judge` reads them.
#ifndef FORESHOCK_SHADOW_STORED_SLICE_H_
#define FORESHOCK_SHADOW_STORED_SLICE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shadow/key_columns.h"
#include "shadow/reference.h"
#include "shadow/slice.h"

namespace foreshock {

// A packed, row-major array of a file. Does not own the data.
struct StoredArray {
  std::string type;  // name of the type in safetensors: "BF16"
  std::vector<int64_t> shape;
  const void* data = nullptr;
  uint64_t bytes = 0;
};
using StoredArrays = std::map<std::string, StoredArray, std::less<>>;

// The numbers of a call that its slices are stored with. Without the array `kept`, dropout is not read.
struct StoredNumbers {
  double scale = 0, soft_cap = 0, dropout = 0;
};

// Returns the arrays of a slice of rows: q [rows, head_dim], k [keys, head_dim], v [keys, value_dim], out
// [rows, value_dim], key_limit [rows] (the end of the keys that a row sees). Optional are key_begin [rows]
// (the first of these keys, with a window), lse (log-sum-exp) [rows], mask and kept (what dropout has kept)
// [rows, keys], dout (like out) and dq (like q). The arrays reference_out, reference_lse and reference_dq in
// fp64 are those of `reference`. Borrows from both arguments.
StoredArrays arrays_of(const AttentionSlice& slice, const Reference& reference);

// Fills *slice from arrays with these names and borrows their data, which must be aligned to 8 bytes. The
// arrays may be invalid: returns an error text, or "" if *slice is valid (judgement.h).
std::string slice_from(const StoredArrays& arrays, const StoredNumbers& numbers, AttentionSlice* slice);

// Returns the arrays of a slice of key positions: k and dk [columns, head_dim], v and dv [columns,
// value_dim], first_query [columns] (the first query position that sees the key), and with a window query_end
// [columns] (the end of those positions). For all query rows, head by head, there are q [rows, head_dim], out
// and dout [rows, value_dim], and lse [rows]. Optional are mask and kept [columns, rows], and key_sums
// [key_sum_count(), 3], the fields of each ColumnSum (sums over all keys); *sums stores their data. The
// arrays reference_dk and reference_dv in fp64 are those of `reference`. Borrows from all arguments.
StoredArrays arrays_of(const KeyColumns& columns, const ColumnReference& reference,
                       std::vector<double>* sums);

// Does the same as slice_from() for a slice of key positions. `heads` query heads share the `keys` keys.
std::string columns_from(const StoredArrays& arrays, const StoredNumbers& numbers, int heads, int64_t keys,
                         std::vector<ColumnSum>* sums, KeyColumns* columns);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_STORED_SLICE_H_
