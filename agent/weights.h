// The weights of a run on this node: the parts that its ranks hold put together, tensor by tensor and step by
// step; how far each has moved since its last snapshot and since its first one; and whether replicas agree.
#ifndef FORESHOCK_AGENT_WEIGHTS_H_
#define FORESHOCK_AGENT_WEIGHTS_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/replicas.h"
#include "segment/tensor_parser.h"
#include "shadow/histogram_reader.h"
#include "shadow/wasserstein.h"

namespace foreshock {

// A tensor. Where a rank holds all of it, ranks of other model-parallel coordinates have another of that
// name.
struct TensorKey {
  std::string name;
  int32_t tensor_parallel = -1, pipeline_parallel = -1, expert_parallel = -1;
  auto operator<=>(const TensorKey&) const = default;
};

// One snapshot of one tensor, of as much of it as this node holds.
struct TensorSnapshot {
  std::string name, layer;
  int64_t step = -1;
  double time = 0;  // seconds since 1970, of its first part
  DType dtype = DType::kNone;
  uint64_t interval = 0;
  uint64_t elements = 0, whole_elements = 0;  // on this node, of the whole tensor
  uint64_t parts = 0, ranks = 0;              // different parts, ranks that hold any of them
  std::vector<int64_t> shape;
  Histogram histogram;
  uint64_t histogram_hash = 0;  // FNV-1a of its stored bytes
  std::optional<int64_t> previous_step, initial_step;
  std::optional<Wasserstein> previous, initial;  // W1 to the snapshot an interval before, and to the first
  double sum_of_squares = 0;
  // Of the change that this one step made; absent where a part's is not known.
  std::optional<double> update_sum_magnitude, update_max_magnitude;
  std::vector<int64_t> odd_ranks;  // whose part differs from their replicas'
};

// The model as a whole over one interval, each tensor at its own step of it.
struct ModelSnapshot {
  int64_t step = -1;  // that the interval began with
  uint64_t interval = 0, tensors = 0, elements = 0;
  std::optional<double> previous_pooled, previous_max, initial_pooled, initial_max;
  std::optional<double> rms, update_mean_abs, update_mean_abs_max;  // the last: largest of a tensor's mean
  struct Layer {
    std::optional<double> previous, initial;  // of the worst parameter
  };
  std::map<std::string, Layer> layers;
};

// Thread-compatible.
class Weights {
 public:
  // Bytes for what is kept of snapshots. Beyond them tensors do without a first one, then are not followed.
  static constexpr uint64_t kMostBytes = uint64_t{512} << 20;

  // Takes one record of a rank; `ranks_here`: how many ranks of the run live on this node. Returns what is
  // whole now, in the order of steps. `why`: what is wrong with the record, if it was refused.
  std::vector<TensorSnapshot> take(const segment::TensorView& view, const segment::Identity& identity,
                                   size_t ranks_here, const char** why);

  // The last interval that is complete.
  const ModelSnapshot& model() const { return model_; }
  const Replicas& replicas() const { return replicas_; }
  uint64_t tensors_dropped() const { return dropped_; }

 private:
  struct Part {
    std::vector<int64_t> offset, shape;
    auto operator<=>(const Part&) const = default;
  };
  struct Pending {
    TensorSnapshot snapshot;
    std::map<Part, int> parts;
    std::vector<int32_t> ranks;
    bool update_known = true;
  };
  struct Known {
    std::map<int64_t, Pending> pending;  // by step
    std::string previous, initial;       // stored histograms
    int64_t previous_step = -1, initial_step = -1, last_step = -1;
    uint64_t interval = 0, elements = 0;
    bool saw_first = false;
    size_t ranks = 0;  // that had a part of the last snapshot
  };
  struct Model {
    int64_t window = -1;
    uint64_t interval = 0;
    Histogram now, previous, initial;
    ModelSnapshot snapshot;
    double sum_of_squares = 0, update_sum = 0;
    bool previous_known = true, initial_known = true, update_known = true;
  };

  bool add_part(const segment::TensorView& view, const segment::Identity& identity, Known* known);
  TensorSnapshot finish(Known* known, Pending&& pending);
  void compare(Known* known, TensorSnapshot* snapshot);
  void add_to_model(const TensorSnapshot& snapshot, const Known& known);
  void close_model();
  void forget_before(int64_t step);
  void begin_anew(const segment::TensorRecord& record, const segment::Identity& identity);

  std::map<TensorKey, Known> known_;
  HistogramReader reader_;
  Replicas replicas_;
  Model building_;
  ModelSnapshot model_;
  uint64_t bytes_ = 0, dropped_ = 0;
  uint64_t begun_ns_ = 0;  // when the first record of this attempt was made
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_WEIGHTS_H_
