// The health of the optimizers of a run on this node, from the numbers that trainers give of each tensor now
// and then.
#ifndef FORESHOCK_AGENT_OPTIMIZER_HEALTH_H_
#define FORESHOCK_AGENT_OPTIMIZER_HEALTH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "agent/tensor_key.h"
#include "segment/layout.h"
#include "segment/parser.h"

namespace foreshock {

// Of one tensor, or a rank's part of it, at one step. Sums, so that parts can be joined and tensors pooled;
// NaN or negative: not known.
struct OptimizerSums {
  double values[segment::kOptimizerNumbers];
  double weight_squares, update_squares;  // of the values after the step, and of what the step changed

  // Of a payload, which may be shorter or longer than what is known here.
  static OptimizerSums of(segment::Bytes payload, double weight_squares, double update_squares);

  std::optional<double> gradient_rms() const;
  std::optional<double> rms_staleness() const;            // sqrt(mean(g^2 / max(v^, eps^2)))
  std::optional<double> surprise_ratio() const;           // share with g^2 > 50 v^, v^ as the step found it
  std::optional<double> epsilon_dominated_ratio() const;  // share with sqrt(v^) < eps
  std::optional<double> update_ratio() const;             // |dW| / |W|

  // Another part of the same tensor at the same step: what one of them does not know is not known.
  void join(const OptimizerSums& other);
  // Another tensor: keeps what both know, and what one alone knows.
  void pool(const OptimizerSums& other);
};

// The last word on each tensor, pooled: tensors take turns, so these are of the last interval.
class OptimizerHealth {
 public:
  void take(const TensorKey& key, uint32_t dims, int64_t step, const OptimizerSums& sums);

  // Forgets the tensors that were last seen before `step`.
  void forget_before(int64_t step);

  struct Summary {
    OptimizerSums pooled;
    std::optional<double> staleness_max, update_ratio_max;
    std::string stalest, fastest;  // the tensors that have these
  };
  // Nothing before the first tensor. Update ratios of vectors, which may be near 0 as a whole, are not the
  // largest.
  std::optional<Summary> summary() const;

 private:
  static constexpr size_t kMostTensors = 1 << 16;
  struct Tensor {
    uint32_t dims = 0;
    int64_t step = -1;
    OptimizerSums sums;
  };
  std::map<TensorKey, Tensor> tensors_;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_OPTIMIZER_HEALTH_H_
