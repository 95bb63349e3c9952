// For tests/kernels/test_adam_sums.py: the sums of each pair of tensors that standard input holds. A pair is
// beta2 and eps (fp64), step, format of the gradient, format of its second moment, shape and strides of both
// (int64: 4, 4, 4), bytes of each, and the bytes.
#include <cinttypes>
#include <cstdio>
#include <vector>

#include "kernels/sums.h"

namespace {

template <class T>
bool read(T* to, size_t count = 1) {
  return std::fread(to, sizeof(T), count, stdin) == count;
}

}  // namespace

int main() {
  double numbers[2];
  while (read(numbers, 2)) {
    int64_t head[3], shape[4], strides[2][4], bytes[2];
    if (!read(head, 3) || !read(shape, 4) || !read(strides[0], 8) || !read(bytes, 2)) return 1;
    std::vector<char> data[2];
    foreshock::TensorView view[2];
    for (int n = 0; n < 2; ++n) {
      data[n].resize(static_cast<size_t>(bytes[n]));
      if (!read(data[n].data(), data[n].size())) return 1;
      view[n].data = data[n].data();
      view[n].dtype = static_cast<foreshock::DType>(head[1 + n]);
      for (int d = 0; d < 4; ++d) {
        view[n].shape[d] = shape[d];
        view[n].stride[d] = strides[n][d];
      }
    }
    foreshock::AdamSums sums;
    foreshock::add_adam_sums(view[0], view[1], {.beta2 = numbers[0], .eps = numbers[1], .step = head[0]},
                             &sums);
    std::printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %.17g %" PRIu64 " %" PRIu64 " %" PRIu64 " %.17g\n",
                sums.counted, sums.nonfinite_gradient, sums.unusable_state, sums.staleness,
                sums.epsilon_dominated, sums.surprised, sums.surprise_counted, sums.gradient_squares);
  }
}
