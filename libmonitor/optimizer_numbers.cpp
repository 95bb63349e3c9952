#include "libmonitor/optimizer_numbers.h"

#include <algorithm>
#include <limits>

#include "kernels/sums.h"

namespace foreshock {
namespace {

bool is_readable(const foreshock_tensor& tensor) {
  return tensor.data != nullptr && tensor.device_type == FORESHOCK_DEVICE_CPU &&
         is_floating(static_cast<DType>(tensor.dtype)) && tensor.dims <= FORESHOCK_TENSOR_DIMS;
}

void tell_gradient(const GradientSums& sums, double* numbers) {
  numbers[segment::kGradientSumOfSquares] = sums.squares;
  numbers[segment::kGradientElements] = static_cast<double>(sums.finite);
  numbers[segment::kGradientNonFinite] = static_cast<double>(sums.nonfinite);
}

void tell_moment(const AdamSums& sums, double* numbers) {
  numbers[segment::kMomentElements] = static_cast<double>(sums.counted);
  numbers[segment::kMomentUnusable] = static_cast<double>(sums.unusable_state);
  numbers[segment::kStalenessSum] = sums.staleness;
  numbers[segment::kEpsilonDominated] = static_cast<double>(sums.epsilon_dominated);
  numbers[segment::kSurprised] = static_cast<double>(sums.surprised);
  numbers[segment::kSurpriseElements] = static_cast<double>(sums.surprise_counted);
}

}  // namespace

OptimizerState optimizer_of(const foreshock_weight_state& state) {
  return {.gradient = state.gradient,
          .second_moment = state.square_average,
          .step = state.optimizer_step,
          .learning_rate = state.learning_rate,
          .beta1 = state.beta1,
          .beta2 = state.beta2,
          .epsilon = state.epsilon,
          .weight_decay = state.weight_decay};
}

TensorView view_of(const foreshock_tensor& tensor) {
  TensorView view{.data = tensor.data, .dtype = static_cast<DType>(tensor.dtype)};
  const uint32_t absent = FORESHOCK_TENSOR_DIMS - tensor.dims;
  for (uint32_t d = 0; d < tensor.dims; ++d) {
    view.shape[absent + d] = tensor.shape[d];
    view.stride[absent + d] = tensor.stride[d];
  }
  return view;
}

bool is_same_shape(const foreshock_tensor& a, const foreshock_tensor& b) {
  return a.dims == b.dims && std::equal(a.shape, a.shape + a.dims, b.shape);
}

bool adam_step_of(const OptimizerState& state, AdamStep* step) {
  *step = {.beta2 = state.beta2, .eps = state.epsilon, .step = state.step};
  return state.step >= 1 && state.beta2 >= 0 && state.beta2 < 1 && state.epsilon >= 0;
}

void tell_optimizer(const OptimizerState& state, const GradientSums* gradient, const AdamSums* moment,
                    double* numbers) {
  std::fill_n(numbers, segment::kOptimizerNumbers, std::numeric_limits<double>::quiet_NaN());
  numbers[segment::kSeenLearningRate] = state.learning_rate;
  numbers[segment::kSeenBeta1] = state.beta1;
  numbers[segment::kSeenBeta2] = state.beta2;
  numbers[segment::kSeenEpsilon] = state.epsilon;
  numbers[segment::kSeenWeightDecay] = state.weight_decay;
  if (moment != nullptr) {
    tell_moment(*moment, numbers);
    tell_gradient({moment->gradient_squares, moment->counted, moment->nonfinite_gradient}, numbers);
  } else if (gradient != nullptr) {
    tell_gradient(*gradient, numbers);
  }
}

void optimizer_numbers(const OptimizerState& state, double* numbers) {
  if (!is_readable(state.gradient)) return tell_optimizer(state, nullptr, nullptr, numbers);
  const TensorView gradient = view_of(state.gradient);
  AdamSums sums;
  AdamStep step;
  if (is_readable(state.second_moment) && is_same_shape(state.gradient, state.second_moment) &&
      adam_step_of(state, &step))
    add_adam_sums(gradient, view_of(state.second_moment), step, &sums);
  if (sums.counted + sums.nonfinite_gradient + sums.unusable_state > 0)
    return tell_optimizer(state, nullptr, &sums, numbers);
  GradientSums of_gradient;
  add_gradient_sums(gradient, &of_gradient);
  tell_optimizer(state, &of_gradient, nullptr, numbers);
}

}  // namespace foreshock
