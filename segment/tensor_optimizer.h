// What a trainer's optimizer says of one tensor at one step: a payload of the tensor's record, fp64 numbers.
// They may be appended to.
#ifndef FORESHOCK_SEGMENT_TENSOR_OPTIMIZER_H_
#define FORESHOCK_SEGMENT_TENSOR_OPTIMIZER_H_

#include <cstdint>

namespace foreshock::segment {

// Places in the payload; NaN: not known. Sums are over the rank's part, and over what is finite; those of the
// second moment are kernels/adam_sums.h.
enum OptimizerNumber : uint32_t {
  kGradientSumOfSquares,  // of the gradient that the optimizer took (after clipping)
  kGradientElements,      // finite ones
  kGradientNonFinite,
  kMomentElements,  // with a usable gradient and second moment
  kMomentUnusable,
  kStalenessSum,
  kEpsilonDominated,
  kSurprised,
  kSurpriseElements,
  kSeenLearningRate,  // of the tensor's group
  kSeenBeta1,
  kSeenBeta2,
  kSeenEpsilon,
  kSeenWeightDecay,
  kOptimizerNumbers
};

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_TENSOR_OPTIMIZER_H_
