#include "kernels/gradient_sums.h"

#include "kernels/joint_blocks.h"

namespace foreshock {

void add_gradient_sums(const TensorView& gradient, GradientSums* sums) {
  for_each_joint_block(gradient, gradient, [&](const double* g, const double*, size_t n) {
    GradientSums of_block;
    for (size_t i = 0; i < n; ++i) of_block.add(g[i]);
    sums->add(of_block);
  });
}

}  // namespace foreshock
