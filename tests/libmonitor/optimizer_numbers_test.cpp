#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "libmonitor/weight_measure.h"

namespace foreshock {
namespace {

using segment::OptimizerNumber;

foreshock_tensor matrix(const std::vector<float>& values, int64_t rows, int64_t columns) {
  foreshock_tensor tensor = {};
  tensor.data = values.data();
  tensor.dtype = FORESHOCK_FP32;
  tensor.dims = 2;
  for (int d = 0; d < 4; ++d) tensor.shape[d] = 1;
  tensor.shape[0] = rows;
  tensor.shape[1] = columns;
  tensor.stride[0] = columns;
  tensor.stride[1] = 1;
  return tensor;
}

std::vector<double> numbers_of(const OptimizerState& state) {
  std::vector<double> numbers(segment::kOptimizerNumbers, -7);
  optimizer_numbers(state, numbers.data());
  return numbers;
}

// g = 2, v = 4 (1 - beta2^2) after two steps: v^ = 4, so g^2 / v^ = 1 everywhere.
struct Adam {
  std::vector<float> gradient = std::vector<float>(6, 2.f),
                     moment = std::vector<float>(6, 4 * (1 - .5f * .5f));
  OptimizerState state{.gradient = matrix(gradient, 2, 3),
                       .second_moment = matrix(moment, 2, 3),
                       .step = 2,
                       .learning_rate = .1,
                       .beta1 = .9,
                       .beta2 = .5,
                       .epsilon = 1e-8,
                       .weight_decay = .01};
};

TEST(OptimizerNumbers, OfAdam) {
  const Adam adam;
  const std::vector<double> numbers = numbers_of(adam.state);
  EXPECT_EQ(numbers[segment::kGradientSumOfSquares], 24);
  EXPECT_EQ(numbers[segment::kGradientElements], 6);
  EXPECT_EQ(numbers[segment::kGradientNonFinite], 0);
  EXPECT_EQ(numbers[segment::kMomentElements], 6);
  EXPECT_EQ(numbers[segment::kStalenessSum], 6);
  EXPECT_EQ(numbers[segment::kEpsilonDominated], 0);
  EXPECT_EQ(numbers[segment::kSurpriseElements], 6);
  EXPECT_EQ(numbers[segment::kSeenLearningRate], .1);
  EXPECT_EQ(numbers[segment::kSeenBeta1], .9);
  EXPECT_EQ(numbers[segment::kSeenBeta2], .5);
  EXPECT_EQ(numbers[segment::kSeenEpsilon], 1e-8);
  EXPECT_EQ(numbers[segment::kSeenWeightDecay], .01);
}

void expect_gradient_alone(const std::vector<double>& numbers, double squares, double finite,
                           double nonfinite) {
  EXPECT_EQ(numbers[segment::kGradientSumOfSquares], squares);
  EXPECT_EQ(numbers[segment::kGradientElements], finite);
  EXPECT_EQ(numbers[segment::kGradientNonFinite], nonfinite);
  for (uint32_t n = segment::kMomentElements; n <= segment::kSurpriseElements; ++n)
    EXPECT_TRUE(std::isnan(numbers[n])) << n;
}

TEST(OptimizerNumbers, WithoutASecondMomentTheGradientIsKnown) {
  Adam adam;
  adam.state.second_moment.data = nullptr;
  expect_gradient_alone(numbers_of(adam.state), 24, 6, 0);
  adam.gradient[1] = NAN;
  adam.gradient[5] = -INFINITY;
  expect_gradient_alone(numbers_of(adam.state), 16, 4, 2);
}

TEST(OptimizerNumbers, WhatIsNoMomentOfThisGradientIsNotTakenForOne) {
  Adam other_shape;
  other_shape.state.second_moment = matrix(other_shape.moment, 3, 2);
  expect_gradient_alone(numbers_of(other_shape.state), 24, 6, 0);
  Adam on_device;
  on_device.state.second_moment.device_type = FORESHOCK_DEVICE_CUDA;
  expect_gradient_alone(numbers_of(on_device.state), 24, 6, 0);
  Adam unknown;
  unknown.state.beta2 = NAN;
  expect_gradient_alone(numbers_of(unknown.state), 24, 6, 0);
  Adam before_any_step;
  before_any_step.state.step = -1;
  expect_gradient_alone(numbers_of(before_any_step.state), 24, 6, 0);
  Adam packed_format;
  packed_format.state.second_moment.dtype = FORESHOCK_DTYPE_NONE;
  expect_gradient_alone(numbers_of(packed_format.state), 24, 6, 0);
}

TEST(OptimizerNumbers, AGradientOnADeviceIsNotRead) {
  Adam adam;
  adam.state.gradient.device_type = FORESHOCK_DEVICE_CUDA;
  const std::vector<double> numbers = numbers_of(adam.state);
  EXPECT_TRUE(std::isnan(numbers[segment::kGradientSumOfSquares]));
  EXPECT_TRUE(std::isnan(numbers[segment::kStalenessSum]));
  EXPECT_EQ(numbers[segment::kSeenLearningRate], .1);
}

}  // namespace
}  // namespace foreshock
