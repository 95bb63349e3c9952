// One pass over a gradient and its second moment at the end of an optimizer step, for the record of their
// tensor.
#ifndef FORESHOCK_LIBMONITOR_OPTIMIZER_NUMBERS_H_
#define FORESHOCK_LIBMONITOR_OPTIMIZER_NUMBERS_H_

#include "foreshock/hook.h"
#include "segment/tensor_optimizer.h"

namespace foreshock {

// Borrowed. Absent tensors have data NULL; numbers that are not known are NaN, the step -1.
struct OptimizerState {
  foreshock_tensor gradient, second_moment;
  int64_t step;  // of this tensor, the one that has just been taken included
  double learning_rate, beta1, beta2, epsilon, weight_decay;
};

// Fills kOptimizerNumbers of them. What lies on a device, has another format or shapes that differ is not
// known.
void optimizer_numbers(const OptimizerState& state, double* numbers);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_OPTIMIZER_NUMBERS_H_
