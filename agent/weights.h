// The weights of a run on this node: the parts that its ranks hold put together, tensor by tensor and step by
// step; how far each has moved since its last snapshot and since its first one; and whether replicas agree.
#ifndef FORESHOCK_AGENT_WEIGHTS_H_
#define FORESHOCK_AGENT_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "agent/attempt_watch.h"
#include "agent/optimizer_health.h"
#include "agent/replicas.h"
#include "agent/rollback_watch.h"
#include "agent/weight_series.h"
#include "segment/parser.h"
#include "shadow/histogram_reader.h"

namespace foreshock {

// Thread-compatible.
class Weights {
 public:
  // For what is kept of snapshots, a quarter of it for those that wait for a part.
  static constexpr uint64_t kMostBytes = uint64_t{512} << 20;
  explicit Weights(uint64_t most_bytes = kMostBytes)
      : most_pending_(most_bytes / 4), series_(most_bytes - most_bytes / 4) {}

  // Takes one record of a rank; `ranks_here`: how many ranks of the run live on this node. Returns what is
  // whole now, in the order of steps. `why`: what is wrong with the record, if it was refused.
  std::vector<TensorSnapshot> take(const segment::TensorView& view, const segment::Identity& identity,
                                   size_t ranks_here, const char** why);

  // Another agent has followed this run before: what its first snapshots were is not known here.
  void set_followed_before() { is_followed_before_ = true; }
  // The step of a snapshot that there is no first one of its tensor for: said once in an attempt.
  std::optional<int64_t> take_initial_unknown();

  // The last interval that is complete, of the model and of each layer.
  const PoolSnapshot& model() const { return series_.model(); }
  const std::map<std::string, PoolSnapshot>& layers() const { return series_.layers(); }
  std::vector<PoolSnapshot> completed() { return series_.completed(); }
  // Values of all tensors that are held here, and those of the whole tensors.
  using Held = WeightSeries::Held;
  Held held() const { return series_.held(); }
  const Replicas& replicas() const { return replicas_; }
  // Each tensor once, however many replicas and parts it has here.
  const OptimizerHealth& optimizer() const { return optimizer_; }
  uint64_t snapshots_dropped() const { return series_.dropped() + dropped_; }  // for want of room here
  uint64_t pending_bytes() const { return pending_bytes_; }  // of histograms that wait for a part
  uint64_t kept_bytes() const { return series_.bytes(); }    // of those to compare with
  size_t known_tensors() const { return known_.size(); }

 private:
  struct Pending {
    TensorSnapshot snapshot;
    std::set<int32_t> ranks;  // that have shown what they hold of it
    bool is_first = false;
  };
  struct Known {
    std::map<int64_t, Pending> pending;  // by step
    int64_t last_step = -1;
    std::set<int32_t> holders;  // the ranks that had a part of the last snapshot
    bool is_settled = false;    // no other rank has shown it since
  };

  bool read(const segment::TensorView& view, const Known* known, Histogram* histogram, const char** why);
  void add_part(const segment::TensorView& view, const Histogram& histogram, Pending* pending);
  bool have_passed(int64_t step, const Pending& pending) const;
  bool is_complete(const Known& known, int64_t step, const Pending& pending) const;
  void finish(Known* known, std::vector<TensorSnapshot>* done);
  std::map<int64_t, Pending>::node_type extract(Known* known, int64_t step);
  void drop(Known* known, int64_t step);
  void note_initial(const TensorSnapshot& snapshot);
  void wait_no_longer(int64_t step);
  void make_room(std::vector<TensorSnapshot>* done);
  void take_optimizer(const TensorSnapshot& snapshot);
  int64_t passed() const;
  bool may_be_first(const segment::TensorRecord& record, const segment::Identity& identity) const;
  void begin_attempt(const segment::TensorRecord& record, const segment::Identity& identity);
  void begin_anew(bool keeps_initial);

  const uint64_t most_pending_;
  std::map<TensorKey, Known> known_;
  HistogramReader reader_;
  Replicas replicas_;
  WeightSeries series_;
  OptimizerHealth optimizer_;
  int64_t forgotten_ = 0;  // step at which old tensors of optimizer_ were looked for
  uint64_t dropped_ = 0;   // of tensors beyond what is followed, and those that lack a part
  uint64_t pending_bytes_ = 0;
  std::map<int32_t, int64_t> reached_;  // by rank, the last step that it has shown anything of
  size_t ranks_here_ = 1;
  size_t expected_ = std::numeric_limits<size_t>::max();  // ranks that show anything, once that is known
  std::map<int64_t, size_t> waiting_;                     // by step: how many tensors wait for a part of it
  AttemptWatch attempt_;
  RollbackWatch rollback_;
  bool is_followed_before_ = false, is_any_taken_ = false;
  std::optional<int64_t> initial_unknown_;
  bool is_initial_unknown_told_ = false;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_WEIGHTS_H_
