// Snapshots of tensors in the order of steps: how far each has moved since the one an interval before and
// since the first one; and the same of layers and of the model as a whole, their values put together.
#ifndef FORESHOCK_AGENT_WEIGHT_SERIES_H_
#define FORESHOCK_AGENT_WEIGHT_SERIES_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/tensor_snapshot.h"

namespace foreshock {

// Thread-compatible. Histograms are kept as bytes, up to a limit: beyond half of it tensors do without a
// first snapshot, beyond all of it without any to compare with, and are in no layer and no model.
class WeightSeries {
 public:
  explicit WeightSeries(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  // Fills in what is known of `snapshot` against those before, and its stored histogram. `is_first`: it may
  // be the tensor's first one.
  void take(bool is_first, TensorSnapshot* snapshot);

  // Layers, and the model, that have become complete since this was last asked.
  std::vector<PoolSnapshot> completed();

  // The last ones that were.
  const PoolSnapshot& model() const { return model_; }
  const std::map<std::string, PoolSnapshot>& layers() const { return layers_; }

  struct Held {
    uint64_t elements = 0, whole_elements = 0;
  };
  Held held() const;  // of all tensors

  uint64_t dropped() const { return dropped_; }  // snapshots for which there was no room
  void begin_anew();

 private:
  struct Tensor {
    TensorSnapshot last;  // without its histogram
    std::string previous, initial;
    int64_t previous_step = -1, initial_step = -1;
  };
  // The tensors of a layer; of layer "": those of no layer.
  struct Group {
    std::set<TensorKey> members;
    std::set<TensorKey> seen;  // in this window
    int64_t window = -1;       // step / interval
    bool is_first = true;      // the window in which the members become known
    uint64_t interval = 0;
    std::string previous, initial;
    int64_t previous_window = -1;
    uint64_t previous_elements = 0, initial_elements = 0;
  };
  // Sums over tensors, of which a PoolSnapshot is made.
  struct Sums {
    PoolSnapshot snapshot;
    Histogram now, previous, initial;
    double squares = 0, updates = 0;
    bool previous_known = true, initial_known = true;
    size_t groups = 0;
  };

  void leave(const std::string& layer, const TensorKey& key);
  void compare(const Tensor& tensor, TensorSnapshot* snapshot) const;
  void keep(bool is_first, const TensorSnapshot& snapshot, Tensor* tensor);
  bool enter(Group* group, const TensorSnapshot& snapshot);
  void forget_before(Group* group, int64_t step);
  void complete(const std::string& layer, Group* group);
  Histogram pooled(const Group& group, std::string Tensor::*stored, uint64_t* elements) const;
  Sums sums_of(const std::string& layer, const Group& group) const;
  void set_first(Group* group, uint64_t elements);
  void store_previous(Group* group, const std::string& stored, uint64_t elements);
  void add_to_model(const Sums& sums, int64_t window);
  size_t groups_alive(int64_t step, uint64_t interval) const;
  void complete_model(int64_t window, Sums* model);
  void forget(std::string* stored);
  bool store(const std::string& bytes, uint64_t limit, std::string* to);

  const uint64_t most_bytes_;
  std::map<TensorKey, Tensor> tensors_;
  std::map<std::string, Group> groups_;
  std::map<int64_t, Sums> models_;  // by window: of the last two
  std::map<std::string, PoolSnapshot> layers_;
  PoolSnapshot model_;
  std::vector<PoolSnapshot> completed_;
  uint64_t bytes_ = 0, dropped_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_WEIGHT_SERIES_H_
