#include "shadow/stored_slice.h"

#include <algorithm>

#include "shadow/judgement.h"

namespace foreshock {
namespace {

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

// Which extents an array has, and which type.
enum class Extents { kRowsHead, kRowsValue, kKeysHead, kKeysValue, kRowsKeys, kRows };
enum class TypeOf { kSlice, kLogSumExp, kMask };

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

DType& type_in(AttentionSlice& slice, TypeOf type) {
  return type == TypeOf::kSlice ? slice.dtype
                                : (type == TypeOf::kMask ? slice.mask_dtype : slice.log_sum_exp_dtype);
}

uint64_t elements_of(const std::vector<int64_t>& shape) {
  uint64_t count = 1;
  for (int64_t extent : shape) count *= static_cast<uint64_t>(extent);
  return count;
}

// A number of rows that may be a slice's, and widths and keys whose products do not overflow.
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

std::string read_limits(const StoredArrays& arrays, AttentionSlice* slice) {
  const auto found = arrays.find("key_limit");
  const auto rows = static_cast<uint64_t>(slice->rows);
  if (found == arrays.end() || found->second.type != "U32" || found->second.bytes != rows * sizeof(uint32_t))
    return "key_limit is not there as [rows] in U32";
  slice->key_limit = static_cast<const uint32_t*>(found->second.data);
  const bool fits = std::all_of(slice->key_limit, slice->key_limit + rows,
                                [&](uint32_t limit) { return limit <= static_cast<uint32_t>(slice->keys); });
  return fits ? "" : "key_limit points beyond the keys";
}

StoredArray reference_array(const std::vector<double>& values, std::vector<int64_t> shape) {
  const uint64_t bytes = elements_of(shape) * sizeof(double);
  return {"F64", std::move(shape), values.data(), bytes};
}

}  // namespace

StoredArrays arrays_of(const AttentionSlice& slice, const Reference& reference) {
  AttentionSlice types = slice;  // type_in() also writes
  StoredArrays arrays;
  for (const Field& field : kFields) {
    if (slice.*field.data == nullptr && field.name[0] != 'k' && field.name[0] != 'v') continue;
    const DType type = type_in(types, field.type);
    std::vector<int64_t> shape = shape_of(field.extents, slice);
    const uint64_t bytes = elements_of(shape) * size_of(type);
    arrays[field.name] = {type_name(type), std::move(shape), slice.*field.data, bytes};
  }
  arrays["key_limit"] = {
      "U32", {slice.rows}, slice.key_limit, static_cast<uint64_t>(slice.rows) * sizeof(uint32_t)};
  arrays["reference_out"] = reference_array(reference.out, {slice.rows, slice.value_dim});
  arrays["reference_lse"] = reference_array(reference.log_sum_exp, {slice.rows});
  if (slice.backward())
    arrays["reference_dq"] = reference_array(reference.grad_query, {slice.rows, slice.head_dim});
  return arrays;
}

std::string slice_from(const StoredArrays& arrays, double scale, AttentionSlice* slice) {
  *slice = {};
  slice->scale = scale;
  std::string problem = read_extents(arrays, slice);
  for (const Field& field : kFields)
    if (problem.empty()) problem = read_field(arrays, field, slice);
  if (problem.empty()) problem = read_limits(arrays, slice);
  if (problem.empty() && !is_valid(*slice)) problem = "its arrays are no slice";
  return problem;
}

}  // namespace foreshock
