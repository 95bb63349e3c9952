// What is known of a weight tensor at one step, and of the layer and the model that it belongs to.
#ifndef FORESHOCK_AGENT_TENSOR_SNAPSHOT_H_
#define FORESHOCK_AGENT_TENSOR_SNAPSHOT_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/optimizer_health.h"
#include "agent/tensor_key.h"
#include "shadow/histogram.h"
#include "shadow/wasserstein.h"

namespace foreshock {

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
  std::string stored;  // the same, shadow/stored_histogram.h
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

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_TENSOR_SNAPSHOT_H_
