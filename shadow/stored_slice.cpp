// Converts slices (the sampled parts of attention calls) to the named arrays of a file, and untrusted arrays
// back to slices. The first half is for slices of query rows with all keys that these rows see, the second
// half for slices of key positions ("columns") with all query rows. In each half, writing and reading share a
// table of the arrays. The functions read_...() return an error text about the slice, or "" on success.
#include "shadow/stored_slice.h"

#include <algorithm>

#include "shadow/judgement.h"

namespace foreshock {
namespace {

// Upper limits on the sizes of untrusted arrays. Products of sizes within them do not overflow 64 bits.
constexpr int64_t kMostKeys = int64_t{1} << 30, kMostWidth = int64_t{1} << 20;

struct Type {
  DType dtype;
  const char* name;
};
constexpr Type kTypes[] = {{DType::kFp64, "F64"},
                           {DType::kFp32, "F32"},
                           {DType::kBf16, "BF16"},
                           {DType::kFp16, "F16"},
                           {DType::kBool, "BOOL"}};

std::string type_name(DType dtype) {
  for (const Type& type : kTypes)
    if (type.dtype == dtype) return type.name;
  return "";
}

DType dtype_of(std::string_view name) {
  for (const Type& type : kTypes)
    if (type.name == name) return type.dtype;
  return DType::kNone;
}

// The shape of an array. kRowsHead is [rows, head_dim], kKeysValue [keys, value_dim], and so on.
enum class Extents { kRowsHead, kRowsValue, kKeysHead, kKeysValue, kRowsKeys, kRows };
// The member of the slice that gives an array's type: dtype, log_sum_exp_dtype, mask_dtype or kept_dtype.
enum class TypeOf { kSlice, kLogSumExp, kMask, kKept };

struct Field {
  const char* name;
  const void* AttentionSlice::*data;
  Extents extents;
  TypeOf type;
};
constexpr Field kFields[] = {
    {"q", &AttentionSlice::query, Extents::kRowsHead, TypeOf::kSlice},
    {"k", &AttentionSlice::key, Extents::kKeysHead, TypeOf::kSlice},
    {"v", &AttentionSlice::value, Extents::kKeysValue, TypeOf::kSlice},
    {"out", &AttentionSlice::out, Extents::kRowsValue, TypeOf::kSlice},
    {"lse", &AttentionSlice::log_sum_exp, Extents::kRows, TypeOf::kLogSumExp},
    {"mask", &AttentionSlice::mask, Extents::kRowsKeys, TypeOf::kMask},
    {"kept", &AttentionSlice::kept, Extents::kRowsKeys, TypeOf::kKept},
    {"dout", &AttentionSlice::grad_out, Extents::kRowsValue, TypeOf::kSlice},
    {"dq", &AttentionSlice::grad_query, Extents::kRowsHead, TypeOf::kSlice},
};

std::vector<int64_t> shape_of(Extents extents, const AttentionSlice& s) {
  switch (extents) {
    case Extents::kRowsHead:
      return {s.rows, s.head_dim};
    case Extents::kRowsValue:
      return {s.rows, s.value_dim};
    case Extents::kKeysHead:
      return {s.keys, s.head_dim};
    case Extents::kKeysValue:
      return {s.keys, s.value_dim};
    case Extents::kRowsKeys:
      return {s.rows, s.keys};
    case Extents::kRows:
      break;
  }
  return {s.rows};
}

// `slice` is an AttentionSlice or KeyColumns.
template <class SliceType>
DType& type_in(SliceType& slice, TypeOf type) {
  switch (type) {
    case TypeOf::kLogSumExp:
      return slice.log_sum_exp_dtype;
    case TypeOf::kMask:
      return slice.mask_dtype;
    case TypeOf::kKept:
      return slice.kept_dtype;
    case TypeOf::kSlice:
      break;
  }
  return slice.dtype;
}

// Sets the numbers of *slice, an AttentionSlice or KeyColumns.
template <class SliceType>
void set_numbers(const StoredNumbers& numbers, SliceType* slice) {
  slice->scale = numbers.scale;
  slice->soft_cap = numbers.soft_cap;
  slice->dropout = numbers.dropout;
}

uint64_t elements_of(const std::vector<int64_t>& shape) {
  uint64_t count = 1;
  for (int64_t extent : shape) count *= static_cast<uint64_t>(extent);
  return count;
}

// Reads the type, the numbers of rows and keys and the widths of a slice from the arrays q and v.
std::string read_extents(const StoredArrays& arrays, AttentionSlice* slice) {
  const auto q = arrays.find("q"), v = arrays.find("v");
  if (q == arrays.end() || v == arrays.end() || q->second.shape.size() != 2 || v->second.shape.size() != 2)
    return "q and v are not there as [rows, width] and [keys, width]";
  const int64_t rows = q->second.shape[0], head = q->second.shape[1], keys = v->second.shape[0],
                value = v->second.shape[1];
  if (rows < 1 || rows > kMaxSliceRows || keys < 0 || keys > kMostKeys) return "it has an impossible shape";
  if (head < 1 || head > kMostWidth || value < 1 || value > kMostWidth) return "it has an impossible shape";
  slice->rows = static_cast<int>(rows);
  slice->keys = static_cast<int>(keys);
  slice->head_dim = static_cast<int>(head);
  slice->value_dim = static_cast<int>(value);
  slice->dtype = dtype_of(q->second.type);
  return "";
}

// Reads one array; a missing array is not an error here. Arrays of TypeOf::kSlice must have the type of q.
// The types of lse, mask and kept are free.
std::string read_field(const StoredArrays& arrays, const Field& field, AttentionSlice* slice) {
  const auto found = arrays.find(field.name);
  if (found == arrays.end()) return "";
  const StoredArray& array = found->second;
  const DType type = dtype_of(array.type);
  const std::string name = field.name;
  if (field.type != TypeOf::kSlice) type_in(*slice, field.type) = type;
  if (type == DType::kNone || type != type_in(*slice, field.type)) return name + " has an unexpected type";
  if (array.shape != shape_of(field.extents, *slice)) return name + " has not the shape of this slice";
  if (array.bytes != elements_of(array.shape) * size_of(type))
    return name + " has not as many bytes as its shape says";
  slice->*field.data = array.bytes > 0 ? array.data : nullptr;
  return "";
}

// Reads an array of a number for each of `rows`, each at most `most`. Leaves *numbers if it is absent.
std::string read_numbers(const StoredArrays& arrays, const char* name, int rows, int most,
                         const uint32_t** numbers) {
  const auto found = arrays.find(name);
  if (found == arrays.end()) return "";
  const auto count = static_cast<uint64_t>(rows);
  if (found->second.type != "U32" || found->second.shape != std::vector<int64_t>{rows} ||
      found->second.bytes != count * sizeof(uint32_t))
    return std::string(name) + " does not have one U32 for each row";
  *numbers = static_cast<const uint32_t*>(found->second.data);
  const bool fits =
      std::all_of(*numbers, *numbers + count, [&](uint32_t n) { return n <= static_cast<uint32_t>(most); });
  return fits ? "" : std::string(name) + " points beyond the slice";
}

// Reads which keys each row sees, or which queries see each key: a first position and an end.
struct SeenNames {
  const char *begin, *end, *required;  // required: `begin` or `end`
};
std::string read_seen(const StoredArrays& arrays, const SeenNames& names, int rows, int most,
                      const uint32_t** begin, const uint32_t** end) {
  if (arrays.find(names.required) == arrays.end()) return std::string(names.required) + " is missing";
  std::string problem = read_numbers(arrays, names.begin, rows, most, begin);
  if (problem.empty()) problem = read_numbers(arrays, names.end, rows, most, end);
  return problem;
}
constexpr SeenNames kKeysSeen = {"key_begin", "key_limit", "key_limit"},
                    kQueriesSeeing = {"first_query", "query_end", "first_query"};

// Stores one of these arrays. If all its numbers are `usual`, it is left out unless it is required.
void store_seen(const SeenNames& names, const char* name, int rows, const uint32_t* numbers, uint32_t usual,
                StoredArrays* arrays) {
  const bool is_usual =
      numbers == nullptr || std::all_of(numbers, numbers + rows, [&](uint32_t n) { return n == usual; });
  if (is_usual && name != names.required) return;
  (*arrays)[name] = {"U32", {rows}, numbers, static_cast<uint64_t>(rows) * sizeof(uint32_t)};
}

StoredArray reference_array(const std::vector<double>& values, std::vector<int64_t> shape) {
  const uint64_t bytes = elements_of(shape) * sizeof(double);
  return {"F64", std::move(shape), values.data(), bytes};
}

}  // namespace

StoredArrays arrays_of(const AttentionSlice& slice, const Reference& reference) {
  AttentionSlice types = slice;  // a copy, because type_in() takes a mutable slice
  StoredArrays arrays;
  for (const Field& field : kFields) {
    // k and v are always stored: without keys they are empty, and their data is null.
    const bool is_of_keys = field.extents == Extents::kKeysHead || field.extents == Extents::kKeysValue;
    if (slice.*field.data == nullptr && !is_of_keys) continue;
    const DType type = type_in(types, field.type);
    std::vector<int64_t> shape = shape_of(field.extents, slice);
    const uint64_t bytes = elements_of(shape) * size_of(type);
    arrays[field.name] = {type_name(type), std::move(shape), slice.*field.data, bytes};
  }
  store_seen(kKeysSeen, kKeysSeen.begin, slice.rows, slice.key_begin, 0, &arrays);
  store_seen(kKeysSeen, kKeysSeen.end, slice.rows, slice.key_limit, static_cast<uint32_t>(slice.keys),
             &arrays);
  arrays["reference_out"] = reference_array(reference.out, {slice.rows, slice.value_dim});
  arrays["reference_lse"] = reference_array(reference.log_sum_exp, {slice.rows});
  if (slice.backward())
    arrays["reference_dq"] = reference_array(reference.grad_query, {slice.rows, slice.head_dim});
  return arrays;
}

std::string slice_from(const StoredArrays& arrays, const StoredNumbers& numbers, AttentionSlice* slice) {
  *slice = {};
  set_numbers(numbers, slice);
  std::string problem = read_extents(arrays, slice);
  for (const Field& field : kFields)
    if (problem.empty()) problem = read_field(arrays, field, slice);
  if (problem.empty())
    problem = read_seen(arrays, kKeysSeen, slice->rows, slice->keys, &slice->key_begin, &slice->key_limit);
  if (problem.empty() && !is_valid(*slice)) problem = "its arrays are no slice";
  return problem;
}

namespace {

struct ColumnField {
  const char* name;
  const void* KeyColumns::*data;
  bool is_of_keys;  // true: the array has a row per sampled key; false: a row per query row
  enum {
    kHead,
    kValue,
    kOne,
    kRows
  } width;  // of a row: head_dim, value_dim, one number, a number per query row
  TypeOf type = TypeOf::kSlice;
};
constexpr ColumnField kColumnFields[] = {
    {"q", &KeyColumns::query, false, ColumnField::kHead},
    {"out", &KeyColumns::out, false, ColumnField::kValue},
    {"dout", &KeyColumns::grad_out, false, ColumnField::kValue},
    {"lse", &KeyColumns::log_sum_exp, false, ColumnField::kOne, TypeOf::kLogSumExp},
    {"mask", &KeyColumns::mask, true, ColumnField::kRows, TypeOf::kMask},
    {"kept", &KeyColumns::kept, true, ColumnField::kRows, TypeOf::kKept},
    {"k", &KeyColumns::key, true, ColumnField::kHead},
    {"v", &KeyColumns::value, true, ColumnField::kValue},
    {"dk", &KeyColumns::grad_key, true, ColumnField::kHead},
    {"dv", &KeyColumns::grad_value, true, ColumnField::kValue},
};

std::vector<int64_t> shape_of(const ColumnField& field, const KeyColumns& c) {
  const int64_t rows = field.is_of_keys ? c.columns : static_cast<int64_t>(c.rows());
  switch (field.width) {
    case ColumnField::kOne:
      return {rows};
    case ColumnField::kHead:
      return {rows, c.head_dim};
    case ColumnField::kValue:
      return {rows, c.value_dim};
    case ColumnField::kRows:
      break;
  }
  return {rows, static_cast<int64_t>(c.rows())};
}

// Reads type and sizes of a slice of key positions from q, k and v. q has the query rows of `heads` heads.
std::string read_extents(const StoredArrays& arrays, int heads, KeyColumns* columns) {
  const auto q = arrays.find("q"), k = arrays.find("k"), v = arrays.find("v");
  for (const auto& found : {q, k, v})
    if (found == arrays.end() || found->second.shape.size() != 2)
      return "q, k and v are not there as matrices";
  const int64_t rows = q->second.shape[0], count = k->second.shape[0], head = k->second.shape[1],
                value = v->second.shape[1];
  if (count < 1 || count > kMaxSliceRows || rows < 1 || rows > kMostKeys || heads < 1 || rows % heads != 0 ||
      head < 1 || head > kMostWidth || value < 1 || value > kMostWidth)
    return "it has an impossible shape";
  columns->columns = static_cast<int>(count);
  columns->heads = heads;
  columns->queries = static_cast<int>(rows / heads);
  columns->head_dim = static_cast<int>(head);
  columns->value_dim = static_cast<int>(value);
  columns->dtype = dtype_of(q->second.type);
  return "";
}

// Reads one array, which must exist unless it is mask or kept. The types of lse, mask and kept are free, all
// other arrays must have the type of q.
std::string read_field(const StoredArrays& arrays, const ColumnField& field, KeyColumns* columns) {
  const auto found = arrays.find(field.name);
  const std::string name = field.name;
  if (found == arrays.end()) return field.width == ColumnField::kRows ? "" : name + " is missing";
  const StoredArray& array = found->second;
  const DType type = dtype_of(array.type);
  if (field.type != TypeOf::kSlice) type_in(*columns, field.type) = type;
  if (type == DType::kNone || type != type_in(*columns, field.type)) return name + " has an unexpected type";
  if (array.shape != shape_of(field, *columns) || array.bytes != elements_of(array.shape) * size_of(type))
    return name + " does not have the shape of these key positions";
  columns->*field.data = array.data;
  return "";
}

// Reads the optional array key_sums into *sums. Each row is a ColumnSum (a sum over all keys of the call):
// its three fields as doubles. The last is a count, which must be below 2^53 to be exact.
std::string read_sums(const StoredArrays& arrays, std::vector<ColumnSum>* sums, KeyColumns* columns) {
  const auto found = arrays.find("key_sums");
  if (found == arrays.end()) return "";
  const size_t count = key_sum_count(columns->head_dim, columns->value_dim);
  if (found->second.type != "F64" ||
      found->second.shape != std::vector<int64_t>{static_cast<int64_t>(count), 3} ||
      found->second.bytes != count * 3 * sizeof(double))
    return "key_sums does not have the shape of these key positions";
  const auto* values = static_cast<const double*>(found->second.data);
  sums->resize(count);
  for (size_t n = 0; n < count; ++n) {
    const double nonfinite = values[3 * n + 2];
    if (!(nonfinite >= 0 && nonfinite < 0x1p53)) return "key_sums has an impossible count";
    (*sums)[n] = {values[3 * n], values[3 * n + 1], static_cast<uint64_t>(nonfinite)};
  }
  columns->sums = sums->data();
  return "";
}

}  // namespace

StoredArrays arrays_of(const KeyColumns& c, const ColumnReference& reference, std::vector<double>* sums) {
  StoredArrays arrays;
  KeyColumns types = c;  // a copy, because type_in() takes mutable columns
  for (const ColumnField& field : kColumnFields) {
    if (c.*field.data == nullptr) continue;  // no mask, or no dropout
    const DType type = type_in(types, field.type);
    std::vector<int64_t> shape = shape_of(field, c);
    const uint64_t bytes = elements_of(shape) * size_of(type);
    arrays[field.name] = {type_name(type), std::move(shape), c.*field.data, bytes};
  }
  store_seen(kQueriesSeeing, kQueriesSeeing.begin, c.columns, c.first_query, 0, &arrays);
  store_seen(kQueriesSeeing, kQueriesSeeing.end, c.columns, c.query_end, static_cast<uint32_t>(c.queries),
             &arrays);
  arrays["reference_dk"] = reference_array(reference.exact.grad_key, {c.columns, c.head_dim});
  arrays["reference_dv"] = reference_array(reference.exact.grad_value, {c.columns, c.value_dim});
  if (c.sums == nullptr) return arrays;
  const size_t count = key_sum_count(c.head_dim, c.value_dim);
  sums->clear();
  for (size_t n = 0; n < count; ++n)
    sums->insert(sums->end(),
                 {c.sums[n].sum, c.sums[n].ulp_squares, static_cast<double>(c.sums[n].nonfinite)});
  arrays["key_sums"] = reference_array(*sums, {static_cast<int64_t>(count), 3});
  return arrays;
}

std::string columns_from(const StoredArrays& arrays, const StoredNumbers& numbers, int heads, int64_t keys,
                         std::vector<ColumnSum>* sums, KeyColumns* columns) {
  *columns = {};
  set_numbers(numbers, columns);
  columns->keys = keys;
  std::string problem = read_extents(arrays, heads, columns);
  for (const ColumnField& field : kColumnFields)
    if (problem.empty()) problem = read_field(arrays, field, columns);
  if (problem.empty())
    problem = read_seen(arrays, kQueriesSeeing, columns->columns, columns->queries, &columns->first_query,
                        &columns->query_end);
  if (problem.empty()) problem = read_sums(arrays, sums, columns);
  if (problem.empty() && !is_valid(*columns)) problem = "its arrays are not key positions";
  return problem;
}

}  // namespace foreshock
