// One pass over a gradient and its second moment at the end of an optimizer step, for the record of their
// tensor.
#ifndef FORESHOCK_LIBMONITOR_OPTIMIZER_NUMBERS_H_
#define FORESHOCK_LIBMONITOR_OPTIMIZER_NUMBERS_H_

#include "foreshock/hook.h"
#include "kernels/sums.h"
#include "segment/layout.h"

namespace foreshock {

// Borrowed. Absent tensors have data NULL; numbers that are not known are NaN, the step -1.
struct OptimizerState {
  foreshock_tensor gradient, second_moment;
  int64_t step;  // of this tensor, the one that has just been taken included
  double learning_rate, beta1, beta2, epsilon, weight_decay;
};

OptimizerState optimizer_of(const foreshock_weight_state& state);

// Fills kOptimizerNumbers of them. What lies on a device, has another format or shapes that differ is not
// known.
void optimizer_numbers(const OptimizerState& state, double* numbers);

// The same with sums that were taken elsewhere; null: not known. Those of a second moment know the gradient.
void tell_optimizer(const OptimizerState& state, const GradientSums* gradient, const AdamSums* moment,
                    double* numbers);

// The dimensions that are there become the last ones: rows are walked along the last.
TensorView view_of(const foreshock_tensor& tensor);
bool is_same_shape(const foreshock_tensor& a, const foreshock_tensor& b);
// False: too little of it is known for anything to be counted.
bool adam_step_of(const OptimizerState& state, AdamStep* step);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_OPTIMIZER_NUMBERS_H_
