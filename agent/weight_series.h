// Snapshots of tensors in the order of steps: how far each has moved since the one an interval before and
// since the first one; and the same of layers and of the model as a whole, their values put together.
#ifndef FORESHOCK_AGENT_WEIGHT_SERIES_H_
#define FORESHOCK_AGENT_WEIGHT_SERIES_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/tensor.h"

namespace foreshock {

// Thread-compatible. Histograms are kept as bytes, up to a limit: beyond half of it tensors do without a
// first snapshot, beyond all of it without any to compare with, and are in no layer and no model.
class WeightSeries {
 public:
  explicit WeightSeries(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  // Fills in what is known of `snapshot` against those before, and its stored histogram. `is_first`: it may
  // be the first one of its tensor that the run has. Tensors come each in the order of its own steps, but not
  // all in one order: ranks run apart.
  void take(bool is_first, TensorSnapshot* snapshot);

  // All snapshots of steps before this one were taken: which tensors there are is known earlier by this.
  void pass(int64_t step);

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
  uint64_t bytes() const { return bytes_; }      // of histograms that are kept

  // Steps may repeat, and a layer and the model have no snapshot yet. First snapshots stay what they are, or
  // go too.
  void begin_anew(bool keeps_initial);
  int64_t initial_step(const TensorKey& key) const;  // -1: there is none
  void forget_initial(const TensorKey& key);

 private:
  static constexpr size_t kMostBuilding = 2;  // windows of a group, and of the model, that wait at once
  static constexpr uint64_t kTurns = 3;       // without a tensor; then it is taken to be gone

  struct Shown {
    TensorSnapshot snapshot;  // without its histogram
    std::string stored;
  };
  struct Tensor {
    std::string layer;
    std::map<int64_t, Shown> shown;  // by window: the last one, and those that its group still waits with
    std::string initial;
    int64_t initial_step = -1;
    uint64_t initial_elements = 0;
    uint64_t turn = 0;  // when it was last shown
  };
  using Seen = std::set<TensorKey>;
  // The tensors of a layer; of layer "": those of no layer.
  struct Group {
    Seen members;
    std::map<int64_t, Seen> building;  // by window (step / interval); the oldest goes when a third begins
    int64_t begun = -1, closed = -1;   // the last window that was begun, and the last that waits no more
    bool is_first = true;              // the members become known
    uint64_t interval = 0, turn = 0;
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

  static std::optional<Wasserstein> distance(bool is_known, const Histogram& before, const Histogram& now);
  void leave(const std::string& layer, const TensorKey& key);
  void compare(const Tensor& tensor, TensorSnapshot* snapshot) const;
  bool keep(bool is_first, bool goes_on, const TensorSnapshot& snapshot, const Group& group, Tensor* tensor);
  void keep_initial(const TensorSnapshot& snapshot, Tensor* tensor);
  void begin_turn(const TensorSnapshot& snapshot);
  bool enter(const TensorSnapshot& snapshot, Group* group);
  void end_first(Group* group);
  void complete_what_is_seen(const std::string& layer, Group* group);
  void complete(const std::string& layer, int64_t window, Group* group);
  void close(int64_t window, Group* group);
  Histogram pooled(const Seen& members, int64_t window, uint64_t* elements) const;
  Histogram first_of(const Seen& members, uint64_t* elements) const;
  Sums sums_of(const std::string& layer, const Group& group, int64_t window) const;
  void set_first(Group* group, uint64_t elements);
  void store_previous(Group* group, int64_t window, const std::string& stored, uint64_t elements);
  void add_to_model(const Sums& sums, int64_t window);
  size_t groups_alive() const;
  void complete_model(int64_t window, Sums* model);
  void forget_shown(Tensor* tensor, const std::map<int64_t, Seen>& building, int64_t but);
  void forget(std::string* stored);
  bool store(const std::string& bytes, uint64_t limit, std::string* to);

  const uint64_t most_bytes_;
  std::map<TensorKey, Tensor> tensors_;
  std::map<std::string, Group> groups_;
  std::set<std::string> new_groups_;  // whose members are not known yet, and maybe others
  std::map<int64_t, Sums> models_;    // by window: of the last two
  std::map<std::string, PoolSnapshot> layers_;
  PoolSnapshot model_;
  std::vector<PoolSnapshot> completed_;
  uint64_t bytes_ = 0, dropped_ = 0;
  // Windows that any tensor has begun, however many lay between two of them: what was not shown in the last
  // few of them is not there any more.
  uint64_t turns_ = 0;
  int64_t turn_begin_ = -1;  // step that the last of them began with
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_WEIGHT_SERIES_H_
