// A strided view of at most four dimensions, borrowed.
#ifndef FORESHOCK_KERNELS_TENSOR_H_
#define FORESHOCK_KERNELS_TENSOR_H_

#include <cstdint>

#include "kernels/dtype.h"

namespace foreshock {

struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kNone;
  int64_t shape[4] = {1, 1, 1, 1};
  int64_t stride[4] = {0, 0, 0, 0};  // in elements, may be 0 (broadcast) or negative

  // The address of element (i, j, k, 0).
  const char* row(int64_t i, int64_t j, int64_t k) const {
    return static_cast<const char*>(data) +
           (i * stride[0] + j * stride[1] + k * stride[2]) * static_cast<int64_t>(size_of(dtype));
  }
};

}  // namespace foreshock

#endif  // FORESHOCK_KERNELS_TENSOR_H_
