// What the agent knows of one weight tensor at one step: its name, where its parts come from, its distances
// and its optimizer.
#ifndef FORESHOCK_AGENT_TENSOR_H_
#define FORESHOCK_AGENT_TENSOR_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "segment/layout.h"
#include "segment/parser.h"
#include "shadow/histogram.h"

namespace foreshock {

// Where a rank holds all of a tensor, ranks of other model-parallel coordinates have another of that name;
// and so has any other rank, when nobody knows its coordinates.
struct TensorKey {
  std::string name;
  int32_t tensor_parallel = -1, pipeline_parallel = -1, expert_parallel = -1;
  int32_t rank = -1;  // -1: of any rank that is at these coordinates
  auto operator<=>(const TensorKey&) const = default;
};

// The health of the optimizers of a run on this node, from the numbers that trainers give of each tensor now
// and then.

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

// What is known of a weight tensor at one step, and of the layer and the model that it belongs to.

inline std::optional<double> value_of(const std::optional<Wasserstein>& distance) {
  return distance ? std::optional<double>(distance->value) : std::nullopt;
}

// Where a part of a tensor lies in it: as many numbers as segment::kTensorDims each.
struct TensorPart {
  std::vector<int64_t> offset, shape;
  auto operator<=>(const TensorPart&) const = default;
};

// One snapshot of one tensor, of as much of it as this node, or the job, holds.
struct TensorSnapshot {
  TensorKey key;
  std::string layer;
  int64_t step = -1;
  double time = 0;  // seconds since 1970, of its first part
  DType dtype = DType::kNone;
  uint64_t interval = 0;
  int32_t attempt = -1;                       // restarts of the run so far; -1: unknown
  uint64_t elements = 0, whole_elements = 0;  // held here, of the whole tensor
  std::vector<TensorPart> parts;              // different ones
  uint64_t ranks = 0;                         // that hold any of them
  std::vector<int64_t> shape;
  Histogram histogram;
  std::string stored;  // the same, shadow/histogram.h
  std::optional<int64_t> previous_step, initial_step;
  std::optional<Wasserstein> previous, initial;  // W1 to the snapshot an interval before, and to the first
  double sum_of_squares = 0;
  // Of the change that this one step made, over `update_elements` of the values; absent where these are none.
  std::optional<double> update_sum_magnitude, update_max_magnitude;
  uint64_t update_elements = 0;
  std::optional<OptimizerSums> optimizer;  // of the parts that are here
  std::vector<int64_t> odd_ranks;          // whose part differs from their replicas'

  std::optional<double> update_mean_abs() const {
    if (!update_sum_magnitude || update_elements == 0) return std::nullopt;
    return *update_sum_magnitude / static_cast<double>(update_elements);
  }
};

// All values of a layer's tensors, or of the model's, as one distribution: over one interval, each tensor at
// its own step of it.
struct PoolSnapshot {
  std::string layer;  // empty: the model
  int64_t step = -1;  // that the interval began with; -1: there is none yet
  double time = 0;    // of the last tensor
  uint64_t interval = 0, tensors = 0, elements = 0;
  uint64_t update_elements = 0;                     // of these, that update_mean_abs and its max are of
  uint64_t histogram_hash = 0;                      // FNV-1a of the stored histogram
  std::optional<Wasserstein> previous, initial;     // W1 to the interval before, and to the first snapshots
  std::optional<double> previous_max, initial_max;  // of the tensor that moved most
  std::string moved_most;                           // that tensor, since the interval before
  std::optional<double> rms, update_mean_abs, update_mean_abs_max;  // the last: largest of a tensor's mean
};

// Where in the job a rank is, as far as that is known.

// All its model-parallel coordinates are known: only then are ranks with equal ones replicas of each other.
inline bool is_placed(const segment::Identity& identity) {
  return identity.late_ready == 1 && identity.tensor_parallel >= 0 && identity.pipeline_parallel >= 0 &&
         identity.expert_parallel >= 0;
}

// Of what a rank holds all of.
inline void place(const segment::Identity& identity, TensorKey* key) {
  if (identity.late_ready == 1) {
    key->tensor_parallel = identity.tensor_parallel;
    key->pipeline_parallel = identity.pipeline_parallel;
    key->expert_parallel = identity.expert_parallel;
  }
  if (!is_placed(identity) && identity.world_size > 1) key->rank = identity.rank;
}

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_TENSOR_H_
