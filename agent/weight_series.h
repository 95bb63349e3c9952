// Measures how far weight tensors, layers and the model have moved since the snapshot one interval of steps
// earlier, and since the first snapshot. The measure is the Wasserstein distance W1 of their histograms.
#ifndef FORESHOCK_AGENT_WEIGHT_SERIES_H_
#define FORESHOCK_AGENT_WEIGHT_SERIES_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/tensor.h"

namespace foreshock {

// A TensorSnapshot (tensor.h) has the histogram of one tensor, which a TensorKey identifies, at one step. A
// window is one interval of steps, in which each tensor has one snapshot; its number is step / interval. The
// tensors of a layer form a group, and the groups form the model. The members of a group become known in its
// first window. A later window of a group is complete when all members have a snapshot in it; a window of the
// model is complete when it is complete in all groups. A pool (PoolSnapshot) has the summed figures of a
// complete window, whose histogram is compared with that of the previous window. Thread-compatible.
class WeightSeries {
 public:
  // Keeps at most `most_bytes` of histograms, in their storage format. A first snapshot is kept only if all
  // kept histograms then take at most half of it. A tensor whose snapshot exceeds the limit is excluded from
  // its layer and the model.
  explicit WeightSeries(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  // Adds a snapshot. Sets its distances to earlier snapshots and its stored histogram. `is_first`: if the
  // tensor is new here, this snapshot is kept as its first one in the run. Snapshots of one tensor must be
  // passed in the order of steps, those of different tensors may be in any order.
  void add(bool is_first, TensorSnapshot* snapshot);
  // Declares that no snapshot of a step before `step` will follow. Ends the first window of each group if
  // that window is before `step` and the second has a snapshot. It also ends when a third window begins.
  void expect_none_before(int64_t step);
  // Returns the windows of layers and of the model that have become complete since the last call.
  std::vector<PoolSnapshot> completed();
  // The last complete windows of the model and, by the label of the layer ("001"), of each layer.
  const PoolSnapshot& model() const { return model_; }
  const std::map<std::string, PoolSnapshot>& layers() const { return layers_; }

  struct Held {
    // Elements of the tensors: of the shards that this node's ranks hold, and of the same tensors unsharded.
    uint64_t elements = 0, whole_elements = 0;
  };
  Held held() const;

  uint64_t dropped() const { return dropped_; }  // histograms that were not kept due to the memory limit
  uint64_t bytes() const { return bytes_; }      // bytes of the kept histograms
  // Drops everything, except the first snapshots if `keeps_initial`. Steps may repeat from now on.
  void restart(bool keeps_initial);
  int64_t initial_step(const TensorKey& key) const;  // step of the first snapshot; -1: not kept
  void forget_initial(const TensorKey& key);         // drops the first snapshot

 private:
  static constexpr size_t kMostBuilding = 2;  // limit of the incomplete windows of a group, and of the model
  // A tensor without a snapshot in this many windows is assumed to no longer exist.
  static constexpr uint64_t kMaxMissedWindows = 3;

  struct KeptSnapshot {
    TensorSnapshot snapshot;  // without its histogram, which is in `stored`
    std::string stored;
  };
  struct Tensor {
    std::string layer;
    std::map<int64_t, KeptSnapshot> kept;  // by window: the last one, and those of incomplete windows
    std::string initial;        // stored histogram of the first snapshot in the run; empty: not kept
    int64_t initial_step = -1;  // -1: not kept
    uint64_t initial_elements = 0;
    uint64_t seen_at_window = 0;  // window_count_ at the tensor's latest snapshot
  };
  using TensorKeys = std::set<TensorKey>;
  struct Group {  // the tensors of a layer, or, for layer "", those without a layer
    TensorKeys members;
    // By incomplete window: tensors with a snapshot in it. When a third window begins, the oldest is dropped.
    std::map<int64_t, TensorKeys> building;
    int64_t newest = -1;                        // the last window with a snapshot
    int64_t closed = -1;                        // the last window that is complete or dropped
    bool in_first_window = true;                // the first window has not ended, so members may be missing
    uint64_t interval = 0, seen_at_window = 0;  // seen_at_window: window_count_ at the latest snapshot
    // Stored histograms: sums over the members in previous_window, and over their first snapshots.
    std::string previous, initial;
    int64_t previous_window = -1;                          // -1: none is stored
    uint64_t previous_elements = 0, initial_elements = 0;  // values in these histograms
  };
  // Sums over the tensors of a group, or over the groups of the model, from which a PoolSnapshot is made.
  struct Sums {
    PoolSnapshot snapshot;
    Histogram now, previous, initial;
    double squares = 0, updates = 0;  // sums of squared values; of absolute changes in a step
    bool previous_known = true, initial_known = true;  // `previous` and `initial` cover all tensors
    size_t groups = 0;                                 // of the model: groups added so far
  };

  static std::optional<Wasserstein> distance(bool has_before, const Histogram& before, const Histogram& now);
  void leave_group(const std::string& layer, const TensorKey& key);
  void compare(const Tensor& tensor, TensorSnapshot* snapshot) const;
  bool keep(bool is_first, bool same_interval, const TensorSnapshot& snapshot, const Group& group,
            Tensor* tensor);
  void keep_initial(const TensorSnapshot& snapshot, Tensor* tensor);
  void begin_window(const TensorSnapshot& snapshot);
  bool open_window(const TensorSnapshot& snapshot, Group* group);
  void end_first_window(Group* group);
  void complete_windows(const std::string& layer, Group* group);
  void complete(const std::string& layer, int64_t window, Group* group);
  void close(int64_t window, Group* group);
  Histogram pooled(const TensorKeys& members, int64_t window, uint64_t* elements) const;
  Histogram initial_of(const TensorKeys& members, uint64_t* elements) const;
  Sums sums_of(const std::string& layer, const Group& group, int64_t window) const;
  void set_initial(Group* group, uint64_t elements);
  void store_previous(Group* group, int64_t window, const std::string& stored, uint64_t elements);
  void add_to_model(const Sums& sums, int64_t window);
  size_t groups_alive() const;
  void complete_model(int64_t window, Sums* model);
  void forget_kept(Tensor* tensor, const std::map<int64_t, TensorKeys>& building, int64_t except);
  void forget(std::string* stored);
  bool store_bytes(const std::string& bytes, uint64_t limit, std::string* to);

  const uint64_t most_bytes_;
  std::map<TensorKey, Tensor> tensors_;
  std::map<std::string, Group> groups_;
  std::set<std::string> new_groups_;  // groups that may be in their first window
  std::map<int64_t, Sums> models_;  // by window: the model's sums in at most kMostBuilding incomplete windows
  std::map<std::string, PoolSnapshot> layers_;
  PoolSnapshot model_;
  std::vector<PoolSnapshot> completed_;
  uint64_t bytes_ = 0, dropped_ = 0;
  uint64_t window_count_ = 0;         // number of windows in which any tensor had a snapshot
  int64_t newest_window_begin_ = -1;  // first step of the newest of these windows
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_WEIGHT_SERIES_H_
