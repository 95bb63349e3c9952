// Data types for weight tensors: identity, optimizer statistics, snapshots of tensors, layers and the model.
#ifndef FORESHOCK_AGENT_TENSOR_H_
#define FORESHOCK_AGENT_TENSOR_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "segment/layout.h"
#include "segment/reader.h"
#include "shadow/histogram.h"

namespace foreshock {

// Identifies a tensor of the job. Ranks with different model-parallel coordinates may hold different tensors
// of one name, so the coordinates are part of the key. If one is unknown (-1) and the job has several ranks,
// the rank is part of the key.
struct TensorKey {
  std::string name;
  int32_t tensor_parallel = -1, pipeline_parallel = -1, expert_parallel = -1;
  int32_t rank = -1;  // -1: not part of the key; ranks at these coordinates hold the same tensor
  auto operator<=>(const TensorKey&) const = default;
};

// Optimizer statistics of one tensor, or of a rank's part of it, at one step. They are sums, so that parts of
// one tensor can be joined and tensors can be pooled. In all members, NaN or less than 0 means unknown.
struct OptimizerSums {
  double values[segment::kOptimizerNumbers];  // sums and settings, indexed by segment::OptimizerNumber
  double weight_squares;                      // sum of the squared weights after the step
  double update_squares;                      // sum of the squared changes of the weights in the step

  // Reads `values` from the payload of a tensor record in the segment. Values that a short payload lacks are
  // NaN; bytes after the known values are ignored.
  static OptimizerSums from_payload(segment::Bytes payload, double weight_squares, double update_squares);
  // In the formulas, g is the gradient, v_hat Adam's bias-corrected second moment, dW the change of W.
  std::optional<double> gradient_rms() const;
  std::optional<double> rms_staleness() const;            // sqrt(mean(g^2 / max(v_hat, eps^2)))
  std::optional<double> surprise_ratio() const;           // share with g^2 > 50 * v_hat of the step before
  std::optional<double> epsilon_dominated_ratio() const;  // share of elements with sqrt(v_hat) < eps
  std::optional<double> update_ratio() const;             // |dW| / |W|

  // Adds another part of the same tensor at the same step. A value unknown in either part becomes unknown.
  void join(const OptimizerSums& other);
  // Adds another tensor. A value that is unknown here becomes that of `other`. Numerator and denominator of a
  // ratio are added only if both are known in `other`.
  void pool(const OptimizerSums& other);
};

// Pools the latest optimizer statistics of every tensor. The tensors are measured in turn over an interval of
// steps, so the statistics cover the last interval.
class OptimizerHealth {
 public:
  // Replaces the statistics of a tensor with `dims` dimensions. Ignores new tensors beyond kMostTensors.
  void set(const TensorKey& key, uint32_t dims, int64_t step, const OptimizerSums& sums);
  // Drops the tensors whose latest statistics are from a step before `step`.
  void forget_before(int64_t step);

  struct Summary {
    OptimizerSums pooled;
    std::optional<double> staleness_max, update_ratio_max;  // largest values of a single tensor
    std::string stalest, fastest;  // names of the tensors with staleness_max and update_ratio_max
  };
  // Empty before the first tensor. Tensors of one dimension are excluded from update_ratio_max: all elements
  // of a vector may be near 0, which makes its update ratio large.
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

// The best estimate of a Wasserstein distance, without its bounds.
inline std::optional<double> value_of(const std::optional<Wasserstein>& distance) {
  return distance ? std::optional<double>(distance->value) : std::nullopt;
}

// A part of a tensor: its offset in the tensor, and its shape; segment::kTensorDims numbers in each vector.
struct TensorPart {
  std::vector<int64_t> offset, shape;
  auto operator<=>(const TensorPart&) const = default;
};

// One tensor at one step, joined from the parts that the ranks of this node, or of the job, hold.
struct TensorSnapshot {
  TensorKey key;
  std::string layer;
  int64_t step = -1;
  double time = 0;  // when the first part was measured; seconds since 1970
  DType dtype = DType::kNone;
  uint64_t interval = 0;          // steps from one snapshot of the tensor to the next
  int32_t attempt = -1;           // restarts of the run so far; -1: unknown
  uint64_t elements = 0;          // in `parts`
  uint64_t whole_elements = 0;    // in the whole tensor
  std::vector<TensorPart> parts;  // the parts that were joined; each once, even if several ranks hold it
  uint64_t ranks = 0;             // ranks that hold any of `parts`
  std::vector<int64_t> shape;     // of the whole tensor
  Histogram histogram;
  std::string stored;  // `histogram` in the storage format of shadow/histogram.h
  // Steps of the previous and the first snapshot of the tensor, and Wasserstein distances (W1) to them.
  std::optional<int64_t> previous_step, initial_step;
  std::optional<Wasserstein> previous, initial;
  double sum_of_squares = 0;  // of the values
  // Sum and maximum of the absolute changes of `update_elements` values in this step; absent: not measured.
  std::optional<double> update_sum_magnitude, update_max_magnitude;
  uint64_t update_elements = 0;
  // Values that were compared with those of the snapshot before, and how many have not changed; 0: none.
  uint64_t sample_elements = 0, sample_unmoved = 0;
  std::optional<OptimizerSums> optimizer;  // joined over `parts`
  std::vector<int64_t> odd_ranks;          // ranks whose part differs from the same part on other ranks

  std::optional<double> update_mean_abs() const {
    if (!update_sum_magnitude || update_elements == 0) return std::nullopt;
    return *update_sum_magnitude / static_cast<double>(update_elements);
  }
};

// All values of a layer's tensors, or of the model's, as one distribution. It covers one interval, in which
// each tensor is measured once, at different steps.
struct PoolSnapshot {
  std::string layer;  // empty: the whole model
  int64_t step = -1;  // first step of the interval; -1: no interval is complete
  double time = 0;    // when the last tensor was measured
  uint64_t interval = 0, tensors = 0, elements = 0;  // steps of the interval; tensors and their elements
  uint64_t update_elements = 0;                      // elements whose change is known
  uint64_t histogram_hash = 0;                       // FNV-1a of the stored histogram
  std::optional<Wasserstein> previous, initial;      // W1 to the interval before, and to the first snapshots
  std::optional<double> previous_max, initial_max;   // largest W1 of a single tensor
  std::string moved_most;                            // the tensor with previous_max
  std::optional<double> rms, update_mean_abs;
  std::optional<double> update_mean_abs_max;  // largest update_mean_abs of a single tensor
};

// Whether all model-parallel coordinates of a rank are known (late_ready is 1 once the trainer has stored
// them). Ranks with equal known coordinates are replicas of each other.
inline bool has_coordinates(const segment::Identity& identity) {
  return identity.late_ready == 1 && identity.tensor_parallel >= 0 && identity.pipeline_parallel >= 0 &&
         identity.expert_parallel >= 0;
}

// Completes the key of a tensor that the rank holds as a whole: sets the coordinates of the key, and its rank
// if any coordinate is unknown and the job has several ranks.
inline void set_coordinates(const segment::Identity& identity, TensorKey* key) {
  if (identity.late_ready == 1) {
    key->tensor_parallel = identity.tensor_parallel;
    key->pipeline_parallel = identity.pipeline_parallel;
    key->expert_parallel = identity.expert_parallel;
  }
  if (!has_coordinates(identity) && identity.world_size > 1) key->rank = identity.rank;
}

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_TENSOR_H_
