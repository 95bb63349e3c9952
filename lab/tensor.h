// A dense row-major matrix of doubles. Every number format of the lab is a subset of fp64, so doubles hold
// the numbers of all formats exactly.
#ifndef FORESHOCK_LAB_TENSOR_H_
#define FORESHOCK_LAB_TENSOR_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace foreshock::lab {

struct Tensor {
  int rows = 0;
  int cols = 0;
  std::vector<double> data;  // [rows][cols]

  Tensor() = default;
  Tensor(int row_count, int col_count, double fill = 0)
      : rows(row_count), cols(col_count), data(static_cast<size_t>(row_count) * col_count, fill) {}

  double* row(int i) { return data.data() + static_cast<size_t>(i) * cols; }
  const double* row(int i) const { return data.data() + static_cast<size_t>(i) * cols; }
  double& at(int i, int j) { return row(i)[j]; }
  double at(int i, int j) const { return row(i)[j]; }
};

// Inputs or outputs of an algorithm of the lab (algorithm.h), by name ("query", "out", "grad_key", ...).
using Tensors = std::map<std::string, Tensor>;

inline Tensor transposed(const Tensor& a) {
  Tensor t(a.cols, a.rows);
  for (int i = 0; i < a.rows; ++i)
    for (int j = 0; j < a.cols; ++j) t.at(j, i) = a.at(i, j);
  return t;
}

// A copy of the rows [begin, end).
inline Tensor rows_of(const Tensor& a, int begin, int end) {
  Tensor part(end - begin, a.cols);
  part.data.assign(a.row(begin), a.row(begin) + part.data.size());
  return part;
}

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_TENSOR_H_
