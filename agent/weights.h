// The weights of a run on this node: puts the parts of each tensor together, follows its histogram and its
// optimizer over the steps, compares replicas, and looks at the spectra of attention heads.
#ifndef FORESHOCK_AGENT_WEIGHTS_H_
#define FORESHOCK_AGENT_WEIGHTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/replicas.h"
#include "agent/tensor.h"
#include "agent/weight_series.h"
#include "segment/layout.h"
#include "segment/parser.h"
#include "shadow/histogram.h"
#include "shadow/spectrum.h"

namespace foreshock {

// Finds the restarts of a run: it may repeat steps, and what was known of them is about other values.
class AttemptWatch {
 public:
  // Whether `record` is the first one of another attempt than all before, or the first at all. A rank that
  // was not seen before may be one that begins late, unless its launcher numbers the attempt higher: after an
  // elastic restart a node may have other ranks.
  bool is_new(const segment::TensorRecord& record, const segment::Identity& identity) {
    const bool is_first = starts_.empty();
    const auto [found, joins] = starts_.try_emplace(identity.rank, identity.start_time_ns);
    const bool starts_again = !joins && identity.start_time_ns > found->second;
    if (starts_again) found->second = identity.start_time_ns;
    const bool is_numbered_higher = attempt_ >= 0 && identity.attempt > attempt_;
    attempt_ = std::max<int64_t>(attempt_, identity.attempt);
    if (!is_first && !is_numbered_higher && (!starts_again || identity.start_time_ns <= begun_ns_))
      return false;
    begun_ns_ = record.time_ns;  // all ranks of this attempt that were seen before have started before
    return true;
  }

 private:
  std::map<int32_t, uint64_t> starts_;  // by rank, of its last process
  uint64_t begun_ns_ = 0;
  int64_t attempt_ = -1;  // the highest number so far; -1: nobody numbers them
};

// A trainer that goes back to an earlier state of its own without a restart repeats steps: what was known of
// them is about other values. A step that is numbered far too high, once, ends the same way.

// All ranks go back together, but are read one after the other: what a rank has shown before it went back,
// and is read after another one went, is of before. Thread-compatible.
class RollbackWatch {
 public:
  // A rank that does not go back at all is not waited for longer, by the clock of the trainers.
  static constexpr uint64_t kPatienceNs = 10'000'000'000;

  enum class Verdict { kGoesOn, kWentBack, kOfBefore };

  // Records of a rank come as it wrote them.
  Verdict take(const segment::TensorRecord& record, int32_t rank) {
    Rank& one = ranks_[rank];
    if (record.step < one.step) ++one.returns;
    one.step = record.step;
    if (one.returns > returns_) {
      returns_ = one.returns;
      one.behind_since_ns = 0;
      return Verdict::kWentBack;
    }
    if (one.returns < returns_) {
      // From its own first record on, or a run that goes back again and again would never hear it.
      if (one.behind_since_ns == 0) one.behind_since_ns = record.time_ns;
      if (record.time_ns - one.behind_since_ns < kPatienceNs) return Verdict::kOfBefore;
    }
    one.returns = returns_;
    one.behind_since_ns = 0;
    return Verdict::kGoesOn;
  }

  void begin_anew() {
    ranks_.clear();
    returns_ = 0;
  }

 private:
  struct Rank {
    int64_t step = -1;
    uint64_t returns = 0;
    uint64_t behind_since_ns = 0;  // its first record that is of before; 0: it is not behind
  };
  std::map<int32_t, Rank> ranks_;
  uint64_t returns_ = 0;  // of the rank that has gone back most often
};

// The weights of a run on this node: the parts that its ranks hold put together, tensor by tensor and step by
// step; how far each has moved since its last snapshot and since its first one; and whether replicas agree.

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

// What training does to the scores of attention heads: from the rows of query and key projections that
// records of tensors carry to the spectra of a run on this node.

class HeadSpectra {
 public:
  static constexpr uint64_t kMostBytes = uint64_t{256} << 20;  // of rows kept; layers beyond are not followed

  // Takes the rows of one record, if it has any. A value when they complete a second look at a layer.
  // Replicas show the same rows of the same step: they count once. `why`: what is wrong with the rows, if
  // anything.
  std::optional<LayerSpectrum> take(const segment::TensorView& tensor, const segment::Identity& identity,
                                    const char** why);

  // Over all layers that have a spectrum, each head counting once.
  std::optional<LayerSpectrum> all_layers() const;
  // Layers by label, and the smallest effective rank of a head of each.
  std::map<std::string, double> smallest_effective_ranks() const;

 private:
  AttemptWatch attempt_;
  LayerSpectra rows_{kMostBytes};
  std::map<TensorKey, LayerSpectrum> spectra_;  // the name is the label of a layer
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_WEIGHTS_H_
