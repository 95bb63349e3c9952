// Walks several tensors of one shape together, in blocks of fp64 values. No heap, no statics.
#ifndef FORESHOCK_KERNELS_JOINT_BLOCKS_H_
#define FORESHOCK_KERNELS_JOINT_BLOCKS_H_

#include <cstddef>

#include "kernels/tensor.h"

namespace foreshock {

inline constexpr size_t kJointBlock = 256;

// `count` elements, `stride` apart, from element `first` of `tensor` on, exactly; its type must be floating.
void load_block(const TensorView& tensor, int64_t first, int64_t stride, size_t count, double* to);

// Whether both have one shape, and elements that are neighbours in memory fill one block of it in one and the
// same order: then they may be walked as one row.
bool is_jointly_dense(const TensorView& a, const TensorView& b);

inline int64_t element_count(const TensorView& tensor) {
  return tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3];
}

// Calls visit(a, b, n) for each block: values of both at the same indices, n <= kJointBlock. The order is
// that of memory when they are jointly dense, else row by row of the shape, which must be the same; a block
// never spans two rows.
template <class Visit>
void for_each_joint_block(const TensorView& a, const TensorView& b, const Visit& visit) {
  double of_a[kJointBlock], of_b[kJointBlock];
  const auto row = [&](int64_t at_a, int64_t stride_a, int64_t at_b, int64_t stride_b, int64_t length) {
    for (int64_t begin = 0; begin < length; begin += kJointBlock) {
      const int64_t left = length - begin;
      const size_t n = left < static_cast<int64_t>(kJointBlock) ? static_cast<size_t>(left) : kJointBlock;
      load_block(a, at_a + begin * stride_a, stride_a, n, of_a);
      load_block(b, at_b + begin * stride_b, stride_b, n, of_b);
      visit(of_a, of_b, n);
    }
  };
  if (is_jointly_dense(a, b)) return row(0, 1, 0, 1, element_count(a));
  const auto start = [](const TensorView& t, int64_t i, int64_t j, int64_t k) {
    return i * t.stride[0] + j * t.stride[1] + k * t.stride[2];
  };
  for (int64_t i = 0; i < a.shape[0]; ++i) {
    for (int64_t j = 0; j < a.shape[1]; ++j) {
      for (int64_t k = 0; k < a.shape[2]; ++k)
        row(start(a, i, j, k), a.stride[3], start(b, i, j, k), b.stride[3], a.shape[3]);
    }
  }
}

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_JOINT_BLOCKS_H_
