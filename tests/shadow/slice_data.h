// Slices with owned arrays, for the tests of shadow/.
#ifndef FORESHOCK_TESTS_SHADOW_SLICE_DATA_H_
#define FORESHOCK_TESTS_SHADOW_SLICE_DATA_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "shadow/slice.h"
#include "tests/shadow/store_rounded.h"

namespace foreshock {

// A packed array of one format; 8-byte words keep it aligned.
class PackedArray {
 public:
  PackedArray() = default;
  PackedArray(DType type, size_t count)
      : type_(type), count_(count), words_((count * size_of(type) + 7) / 8 + 1) {}

  void set(size_t index, double x) {
    if (type_ == DType::kBool) {
      reinterpret_cast<unsigned char*>(words_.data())[index] = x != 0;
    } else {
      store_rounded(type_, x, words_.data(), index);
    }
  }
  double get(size_t index) const { return load_as_double(words_.data(), type_, index); }
  void fill(const std::function<double()>& draw) {
    for (size_t i = 0; i < count_; ++i) set(i, draw());
  }
  const void* data() const { return words_.data(); }
  size_t size() const { return count_; }
  DType type() const { return type_; }

 private:
  DType type_ = DType::kNone;
  size_t count_ = 0;
  std::vector<uint64_t> words_;
};

struct SliceShape {
  DType dtype = DType::kBf16;
  int rows = 16;
  int keys = 100;
  int head_dim = 64;
  int value_dim = 64;
  bool backward = false;
};

// N(0, 1) inputs rounded to the format, out and grad_query zero, every row sees every key, scale 1 /
// sqrt(head_dim).
struct SliceData {
  explicit SliceData(const SliceShape& shape, uint64_t seed = 1) : engine(seed), shape(shape) {
    const size_t rows = shape.rows, keys = shape.keys, head = shape.head_dim, value = shape.value_dim;
    auto draw = [this] { return normal(engine); };
    query = PackedArray(shape.dtype, rows * head);
    key = PackedArray(shape.dtype, keys * head);
    this->value = PackedArray(shape.dtype, keys * value);
    out = PackedArray(shape.dtype, rows * value);
    grad_out = PackedArray(shape.dtype, rows * value);
    grad_query = PackedArray(shape.dtype, rows * head);
    query.fill(draw);
    key.fill(draw);
    this->value.fill(draw);
    grad_out.fill(draw);
    key_limit.assign(rows, shape.keys);
  }

  // Drops each weight with this probability.
  void drop(double probability, DType type = DType::kBool) {
    dropout = probability;
    kept = PackedArray(type, static_cast<size_t>(shape.rows) * shape.keys);
    std::uniform_real_distribution<double> draw(0, 1);
    kept.fill([&] { return draw(engine) < probability ? 0 : 0.25; });
  }

  void causal() {  // rows spread over the positions, one of them the first
    for (int r = 0; r < shape.rows; ++r)
      key_limit[r] = 1 + r * (shape.keys - 1) / std::max(1, shape.rows - 1);
  }

  // A window of `keys_seen` keys, at another place for each row.
  void window(int keys_seen) {
    causal();
    for (const uint32_t limit : key_limit)
      key_begin.push_back(std::max(0, static_cast<int>(limit) - keys_seen));
  }

  AttentionSlice view() const {
    AttentionSlice s;
    s.dtype = shape.dtype;
    s.rows = shape.rows;
    s.keys = shape.keys;
    s.head_dim = shape.head_dim;
    s.value_dim = shape.value_dim;
    s.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
    s.key_begin = key_begin.empty() ? nullptr : key_begin.data();
    s.key_limit = key_limit.data();
    s.query = query.data();
    s.key = key.data();
    s.value = value.data();
    s.out = out.data();
    if (mask.size() > 0) {
      s.mask = mask.data();
      s.mask_dtype = mask.type();
    }
    s.soft_cap = soft_cap;
    if (kept.size() > 0) {
      s.kept = kept.data();
      s.kept_dtype = kept.type();
      s.dropout = dropout;
    }
    if (log_sum_exp.size() > 0) {
      s.log_sum_exp = log_sum_exp.data();
      s.log_sum_exp_dtype = log_sum_exp.type();
    }
    if (shape.backward) {
      s.grad_out = grad_out.data();
      s.grad_query = grad_query.data();
    }
    return s;
  }

  std::mt19937_64 engine;
  std::normal_distribution<double> normal;
  SliceShape shape;
  PackedArray query, key, value, out, grad_out, grad_query, mask, kept, log_sum_exp;
  double soft_cap = 0, dropout = 0;
  std::vector<uint32_t> key_limit, key_begin;  // key_begin: empty, or of each row
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_SHADOW_SLICE_DATA_H_
