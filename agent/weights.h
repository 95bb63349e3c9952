// Follows the weights of a run on this node: joins the parts of each tensor that different ranks hold,
// follows its histogram and optimizer state, compares replicas, and computes spectra of attention heads. The
// input is tensor records: measurements of one rank's part of one tensor after one step.
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

// Detects restarts of a run. A restarted run (a new attempt) may repeat steps with other values.
class AttemptWatch {
 public:
  // Whether `record` is the first of a new attempt, or the first at all. A process that replaces an earlier
  // process of its rank begins a new attempt, unless it started before the first record of the present
  // attempt. A rank not seen before may only have started late, or may be new on this node after an elastic
  // restart. So it begins a new attempt only if its attempt number is the highest so far.
  bool is_new(const segment::TensorRecord& record, const segment::Identity& identity) {
    const bool is_first = starts_.empty();
    const auto [found, is_new_rank] = starts_.try_emplace(identity.rank, identity.start_time_ns);
    const bool starts_again = !is_new_rank && identity.start_time_ns > found->second;
    if (starts_again) found->second = identity.start_time_ns;
    const bool is_numbered_higher = attempt_ >= 0 && identity.attempt > attempt_;
    attempt_ = std::max<int64_t>(attempt_, identity.attempt);
    if (!is_first && !is_numbered_higher && (!starts_again || identity.start_time_ns <= first_record_ns_))
      return false;
    first_record_ns_ = record.time_ns;
    return true;
  }

 private:
  std::map<int32_t, uint64_t> starts_;  // by rank: start time of its last process
  uint64_t first_record_ns_ = 0;        // time of the first record of the present attempt
  int64_t attempt_ = -1;                // highest attempt number so far; -1: attempts are not numbered
};

// Detects that a trainer has returned to an earlier state without a restart (a rollback), so that steps
// repeat with other values. It is recognized by falling step numbers. A fall after a single number that was
// far too high counts as a return too.
//
// All ranks return together, but the agent reads their records one rank after the other. After one rank's
// return it may still read stale records, which another rank wrote before its own return. Thread-compatible.
class RollbackWatch {
 public:
  // Longest time, by the trainers' clock, for which records of a rank that has not returned count as stale.
  static constexpr uint64_t kPatienceNs = 10'000'000'000;

  // kWentBack: the first record after a return. kStale: written before the return, but read after kWentBack.
  enum class Verdict { kGoesOn, kWentBack, kStale };
  // The records of a rank must be passed in the order in which it wrote them.
  Verdict take(const segment::TensorRecord& record, int32_t rank) {
    Rank& writer = ranks_[rank];
    if (record.step < writer.step) ++writer.returns;
    writer.step = record.step;
    if (writer.returns > returns_) {  // the first rank that returns
      returns_ = writer.returns;
      writer.behind_since_ns = 0;
      return Verdict::kWentBack;
    }
    if (writer.returns < returns_) {  // other ranks have returned, this one not yet
      // The time is counted from the rank's own first stale record. If it were counted from the last return,
      // a run that returns again and again would make every record stale.
      if (writer.behind_since_ns == 0) writer.behind_since_ns = record.time_ns;
      if (record.time_ns - writer.behind_since_ns < kPatienceNs) return Verdict::kStale;
    }
    writer.returns = returns_;  // a rank that was behind for kPatienceNs is assumed not to return
    writer.behind_since_ns = 0;
    return Verdict::kGoesOn;
  }

  void restart() {
    ranks_.clear();
    returns_ = 0;
  }

 private:
  struct Rank {
    int64_t step = -1;             // of the rank's last record
    uint64_t returns = 0;          // how often the rank's steps have fallen
    uint64_t behind_since_ns = 0;  // time of the rank's first stale record; 0: it is not behind
  };
  std::map<int32_t, Rank> ranks_;
  uint64_t returns_ = 0;  // returns of the rank that has gone back most often
};

// Joins the parts of weight tensors that the ranks of this node hold into snapshots, compares each snapshot
// with earlier ones, and compares replicas. Thread-compatible.
class Weights {
 public:
  // Memory for histograms; a quarter of it is for snapshots that wait for a part.
  static constexpr uint64_t kMostBytes = uint64_t{512} << 20;
  explicit Weights(uint64_t most_bytes = kMostBytes)
      : most_pending_(most_bytes / 4), series_(most_bytes - most_bytes / 4) {}

  // Adds one record of a rank. `ranks_here` is the number of ranks of the run on this node. Returns the
  // snapshots that are complete now, in the order of steps. If the record is refused, *why is the reason.
  std::vector<TensorSnapshot> take(const segment::TensorView& view, const segment::Identity& identity,
                                   size_t ranks_here, const char** why);

  // Must be called if an earlier agent has followed this run. Its first snapshots are then unknown.
  void set_followed_before() { is_followed_before_ = true; }
  // Returns, once per attempt, the step of a snapshot whose tensor has no known first snapshot in the run.
  std::optional<int64_t> take_initial_unknown();

  // The last complete interval of the model and of each layer. completed() returns all intervals of both that
  // were completed since its last call.
  const PoolSnapshot& model() const { return series_.model(); }
  const std::map<std::string, PoolSnapshot>& layers() const { return series_.layers(); }
  std::vector<PoolSnapshot> completed() { return series_.completed(); }
  // Elements of all tensors: those held on this node, and those of the whole tensors.
  using Held = WeightSeries::Held;
  Held held() const { return series_.held(); }
  const Replicas& replicas() const { return replicas_; }
  // Latest optimizer statistics; each tensor counts once, with any number of replicas and parts on this node.
  const OptimizerHealth& optimizer() const { return optimizer_; }
  // Number of snapshots dropped because memory was full or a part was never reported.
  uint64_t snapshots_dropped() const { return series_.dropped() + dropped_; }
  uint64_t pending_bytes() const { return pending_bytes_; }  // histograms of snapshots that wait for a part
  uint64_t kept_bytes() const { return series_.bytes(); }    // histograms kept for comparison
  size_t known_tensors() const { return known_.size(); }

 private:
  struct Pending {  // a snapshot that waits for parts from other ranks
    TensorSnapshot snapshot;
    std::set<int32_t> ranks;  // ranks that have reported their part
    bool is_first = false;    // may be the first snapshot of its tensor in the run
  };
  struct Known {                         // a tensor of which a record was read
    std::map<int64_t, Pending> pending;  // by step
    int64_t last_step = -1;              // step of the last complete snapshot
    std::set<int32_t> holders;           // ranks with a part of the last snapshot
    bool is_settled = false;             // since that snapshot, no other rank has reported a part
  };

  bool read(const segment::TensorView& view, const Known* known, Histogram* histogram, const char** why);
  void add_part(const segment::TensorView& view, const Histogram& histogram, Pending* pending);
  bool have_passed(int64_t step, const Pending& pending) const;
  bool is_complete(const Known& known, int64_t step, const Pending& pending) const;
  void finish(Known* known, std::vector<TensorSnapshot>* done);
  std::map<int64_t, Pending>::node_type extract(Known* known, int64_t step);
  void drop(Known* known, int64_t step);
  void note_initial(const TensorSnapshot& snapshot);
  void stop_waiting_for_ranks(int64_t step);
  // Completes or drops the oldest snapshots until the waiting ones fit into the memory limit.
  void make_room(std::vector<TensorSnapshot>* done);
  void take_optimizer(const TensorSnapshot& snapshot);
  int64_t passed() const;  // no snapshot of a step before this one will be completed any more; 0: unknown
  bool may_be_first(const segment::TensorRecord& record, const segment::Identity& identity) const;
  void begin_attempt(const segment::TensorRecord& record, const segment::Identity& identity);
  void restart(bool keeps_initial);

  const uint64_t most_pending_;
  std::map<TensorKey, Known> known_;
  HistogramReader reader_;
  Replicas replicas_;
  WeightSeries series_;
  OptimizerHealth optimizer_;
  int64_t forgotten_ = 0;  // step of the last removal of old tensors from optimizer_
  uint64_t dropped_ = 0;   // snapshots of tensors beyond the limit, and snapshots that lack a part
  uint64_t pending_bytes_ = 0;
  std::map<int32_t, int64_t> reached_;  // by rank: step of its latest record
  size_t ranks_here_ = 1;
  size_t expected_ = std::numeric_limits<size_t>::max();  // ranks that report weights; max(): unknown
  std::map<int64_t, size_t> waiting_;                     // by step: tensors that wait for a part
  AttemptWatch attempt_;
  RollbackWatch rollback_;
  bool is_followed_before_ = false;         // an earlier agent, or this one, has followed an earlier attempt
  bool is_any_taken_ = false;               // take() was called in any attempt
  std::optional<int64_t> initial_unknown_;  // result of the next take_initial_unknown()
  bool has_reported_initial_unknown_ = false;
};

// Computes how training changes the scores of attention heads: for each head, the singular values (spectrum)
// of the change of W_Q W_K^T between two measurements, from the head's rows of both in tensor records.
class HeadSpectra {
 public:
  static constexpr uint64_t kMostBytes = uint64_t{256} << 20;  // limit for rows; layers beyond it are ignored

  // Adds the rows of one record, if it has any. Returns a spectrum if a layer has two complete measurements
  // now. Rows that several replicas report for one step count once. *why: null, or why rows are invalid.
  std::optional<LayerSpectrum> take(const segment::TensorView& tensor, const segment::Identity& identity,
                                    const char** why);

  std::optional<LayerSpectrum> all_layers() const;  // returns the spectrum over all heads of all layers
  // Returns the smallest effective rank of each layer's heads, by label of the layer.
  std::map<std::string, double> smallest_effective_ranks() const;

 private:
  AttemptWatch attempt_;
  LayerSpectra rows_{kMostBytes};
  std::map<TensorKey, LayerSpectrum> spectra_;  // TensorKey::name is the label of the layer
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_WEIGHTS_H_
