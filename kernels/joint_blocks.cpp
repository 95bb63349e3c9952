#include "kernels/joint_blocks.h"

namespace foreshock {
namespace {

template <class T, class Convert>
void load(const T* from, int64_t stride, size_t count, double* to, Convert convert) {
  if (stride == 1) {
    for (size_t n = 0; n < count; ++n) to[n] = convert(from[n]);
  } else {
    for (size_t n = 0; n < count; ++n) to[n] = convert(from[static_cast<int64_t>(n) * stride]);
  }
}

}  // namespace

void load_block(const TensorView& tensor, int64_t first, int64_t stride, size_t count, double* to) {
  switch (tensor.dtype) {
    case DType::kFp64:
      return load(static_cast<const double*>(tensor.data) + first, stride, count, to,
                  [](double x) { return x; });
    case DType::kFp32:
      return load(static_cast<const float*>(tensor.data) + first, stride, count, to,
                  [](float x) { return static_cast<double>(x); });
    case DType::kBf16:
      return load(static_cast<const uint16_t*>(tensor.data) + first, stride, count, to,
                  [](uint16_t x) { return static_cast<double>(bf16_to_float(x)); });
    case DType::kFp16:
      return load(static_cast<const uint16_t*>(tensor.data) + first, stride, count, to,
                  [](uint16_t x) { return static_cast<double>(fp16_to_float(x)); });
    default:
      for (size_t n = 0; n < count; ++n) to[n] = 0;
  }
}

bool is_jointly_dense(const TensorView& a, const TensorView& b) {
  int64_t filled = 1;  // elements of the dimensions taken so far, the innermost in memory first
  bool taken[4] = {};
  for (int round = 0; round < 4; ++round) {
    int next = -1;
    for (int n = 0; n < 4; ++n) {
      if (a.shape[n] != b.shape[n]) return false;
      if (!taken[n] && (a.shape[n] == 1 || (a.stride[n] == filled && b.stride[n] == filled))) next = n;
    }
    if (next < 0) return false;
    taken[next] = true;
    filled *= a.shape[next];
  }
  return true;
}

}  // namespace foreshock
