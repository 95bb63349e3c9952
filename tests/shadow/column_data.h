// Sampled key columns with owned arrays, for the tests of shadow/.
#ifndef FORESHOCK_TESTS_SHADOW_COLUMN_DATA_H_
#define FORESHOCK_TESTS_SHADOW_COLUMN_DATA_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "shadow/key_columns.h"
#include "tests/shadow/slice_data.h"

namespace foreshock {

struct ColumnShape {
  DType dtype = DType::kBf16;
  int columns = 16;
  int heads = 1;
  int queries = 100;  // as many keys
  int head_dim = 64;
  int value_dim = 64;
  bool is_causal = false;
  int left = -1, right = -1;  // keys that a query sees before and after its own; -1: all
};

// N(0, 1) inputs rounded to the format, with the out and log_sum_exp of exact attention over all keys, of
// which the columns are an even sample. grad_key and grad_value are zero.
struct ColumnData {
  explicit ColumnData(const ColumnShape& shape, double offset = 0, uint64_t seed = 1)
      : shape(shape), engine(seed) {
    const size_t rows = size_t(shape.heads) * shape.queries, head = shape.head_dim, width = shape.value_dim;
    auto draw = [this] { return normal(engine); };
    query = PackedArray(shape.dtype, rows * head);
    grad_out = PackedArray(shape.dtype, rows * width);
    out = PackedArray(shape.dtype, rows * width);
    all_keys = PackedArray(shape.dtype, shape.queries * head);
    all_values = PackedArray(shape.dtype, shape.queries * width);
    log_sum_exp = PackedArray(shape.dtype == DType::kFp64 ? DType::kFp64 : DType::kFp32, rows);
    query.fill(draw);
    grad_out.fill(draw);
    all_keys.fill(draw);
    all_values.fill(draw);
    for (size_t row = 0; row < rows && offset != 0; ++row) query.set(row * head, 1);
    for (int j = 0; j < shape.queries && offset != 0; ++j) all_keys.set(j * head, offset / scale());
    key = PackedArray(shape.dtype, shape.columns * head);
    value = PackedArray(shape.dtype, shape.columns * width);
    grad_key = PackedArray(shape.dtype, shape.columns * head);
    grad_value = PackedArray(shape.dtype, shape.columns * width);
    for (int n = 0; n < shape.columns; ++n) {
      const int j = key_of(n);
      for (size_t k = 0; k < head; ++k) key.set(n * head + k, all_keys.get(j * head + k));
      for (size_t k = 0; k < width; ++k) value.set(n * width + k, all_values.get(j * width + k));
      const int after = shape.is_causal ? 0 : shape.right;
      first_query.push_back(after >= 0 ? std::max(0, j - after) : 0);
      query_end.push_back(shape.left >= 0 ? std::min(shape.queries, j + shape.left + 1) : shape.queries);
    }
    attend(0, shape.queries);
  }

  double scale() const { return 1 / std::sqrt(double(shape.head_dim)); }

  // The key of a sampled column.
  int key_of(int column) const { return column * shape.queries / shape.columns; }

  // Adds `term`(row, key) to the scores, -Inf: the row does not see the key. The terms are rounded to `type`.
  void add_mask(DType type, const std::function<double(size_t, int)>& term) {
    const size_t rows = size_t(shape.heads) * shape.queries;
    all_terms = PackedArray(type, rows * shape.queries);
    mask = PackedArray(type, shape.columns * rows);
    const auto stored = [&](size_t row, int j) {
      return type == DType::kBool ? double(!std::isinf(term(row, j))) : term(row, j);
    };
    for (size_t row = 0; row < rows; ++row)
      for (int j = 0; j < shape.queries; ++j) all_terms.set(row * shape.queries + j, stored(row, j));
    for (int n = 0; n < shape.columns; ++n)
      for (size_t row = 0; row < rows; ++row) mask.set(n * rows + row, stored(row, key_of(n)));
    attend(0, shape.queries);
  }

  // Drops each weight with this probability.
  void drop(double probability, DType type = DType::kBool) {
    const size_t rows = size_t(shape.heads) * shape.queries;
    dropout = probability;
    all_kept = PackedArray(DType::kBool, rows * shape.queries);
    kept = PackedArray(type, shape.columns * rows);
    std::uniform_real_distribution<double> draw(0, 1);
    all_kept.fill([&] { return draw(engine) < probability ? 0 : 1; });
    for (int n = 0; n < shape.columns; ++n)
      for (size_t row = 0; row < rows; ++row) kept.set(n * rows + row, keep(row, key_of(n)) != 0);
    attend(0, shape.queries);
  }

  // Sets the soft cap of all scores.
  void cap(double value) {
    soft_cap = value;
    attend(0, shape.queries);
  }

  // What dropout multiplies a weight by.
  double keep(size_t row, int j) const {
    if (all_kept.size() == 0) return 1;
    const size_t at = row * shape.queries + j;
    return static_cast<const unsigned char*>(all_kept.data())[at] != 0 ? 1 / (1 - dropout) : 0;
  }

  double term(size_t row, int j) const {
    if (all_terms.size() == 0) return 0;
    const size_t at = row * shape.queries + j;
    if (mask.type() != DType::kBool) return all_terms.get(at);
    return static_cast<const unsigned char*>(all_terms.data())[at] != 0 ? 0 : -INFINITY;
  }

  double score(size_t row, int j) const {
    double sum = 0;
    for (int k = 0; k < shape.head_dim; ++k)
      sum += query.get(row * shape.head_dim + k) * all_keys.get(size_t(j) * shape.head_dim + k);
    const double product = sum * scale();
    return (soft_cap != 0 ? soft_cap * std::tanh(product / soft_cap) : product) + term(row, j);
  }

  // Stores the out and log_sum_exp of keys [first, end). In a row that sees none of them, both are 0, as in
  // PyTorch's CPU kernel.
  void attend(int first, int end) {
    for (size_t row = 0; row < size_t(shape.heads) * shape.queries; ++row) {
      const int own = int(row) % shape.queries, after = shape.is_causal ? 0 : shape.right;
      const int seen = after >= 0 ? std::min(end, own + after + 1) : end;
      const int begin = shape.left >= 0 ? std::max(first, own - shape.left) : first;
      double max = -INFINITY, sum = 0;
      for (int j = begin; j < seen; ++j) max = std::max(max, score(row, j));
      std::vector<double> mean(shape.value_dim);
      for (int j = begin; j < seen && max > -INFINITY; ++j) {
        const double weight = std::exp(score(row, j) - max);
        sum += weight;
        for (int c = 0; c < shape.value_dim; ++c)
          mean[c] += weight * keep(row, j) * all_values.get(size_t(j) * shape.value_dim + c);
      }
      for (int c = 0; c < shape.value_dim; ++c)
        out.set(row * shape.value_dim + c, sum > 0 ? mean[c] / sum : 0);
      log_sum_exp.set(row, sum > 0 ? max + std::log(sum) : 0);
    }
  }

  KeyColumns view() const {
    KeyColumns c;
    c.dtype = shape.dtype;
    c.columns = shape.columns;
    c.heads = shape.heads;
    c.queries = shape.queries;
    c.head_dim = shape.head_dim;
    c.value_dim = shape.value_dim;
    c.scale = scale();
    c.first_query = first_query.data();
    c.query_end = query_end.data();
    c.query = query.data();
    c.out = out.data();
    c.grad_out = grad_out.data();
    c.log_sum_exp = log_sum_exp.data();
    c.log_sum_exp_dtype = log_sum_exp.type();
    c.mask = mask.size() > 0 ? mask.data() : nullptr;
    c.mask_dtype = mask.type();
    c.soft_cap = soft_cap;
    c.kept = kept.size() > 0 ? kept.data() : nullptr;
    c.kept_dtype = kept.type();
    c.dropout = kept.size() > 0 ? dropout : 0;
    c.key = key.data();
    c.value = value.data();
    c.grad_key = grad_key.data();
    c.grad_value = grad_value.data();
    return c;
  }

  ColumnShape shape;
  std::mt19937_64 engine;
  std::normal_distribution<double> normal;
  PackedArray mask, all_terms;  // of the sampled keys, and of all; empty: no mask
  PackedArray kept, all_kept;   // the same of dropout
  double soft_cap = 0, dropout = 0;
  PackedArray query, out, grad_out, log_sum_exp, all_keys, all_values, key, value, grad_key, grad_value;
  std::vector<uint32_t> first_query, query_end;
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_SHADOW_COLUMN_DATA_H_
