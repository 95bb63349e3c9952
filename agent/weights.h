// Follows the weights of a run on this node: joins the parts of each tensor that different ranks hold,
// follows its histogram and optimizer state, compares replicas (equal parts that several ranks hold),
// and detects that a run repeats steps. The input is tensor records: measurements of one rank's part of one
// tensor after one step.
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
#include "segment/reader.h"
#include "shadow/histogram.h"

namespace foreshock {

// Detects restarts of a run. A restarted run (a new attempt) may repeat steps with other values.
class AttemptWatch {
 public:
  // Whether `record` is the first of a new attempt. `identity` describes the process that wrote it. The
  // record begins an attempt in three cases: no record came before; its attempt number (the count of restarts
  // of the job, if known) is higher than all before; or its process has replaced an earlier process of the
  // rank, and started after the first record of the present attempt. A rank not seen before begins no attempt
  // without a higher number, since it may only have started late.
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
// repeat with other values. A return is recognized by a step number below the one before; so one wrong, far
// too high number causes a return at the next record.
//
// All ranks return together, but the agent reads their records one rank after the other. After one rank's
// return, it may still read stale records, which another rank wrote before its own return. Thread-compatible.
class RollbackWatch {
 public:
  // Longest time, by the trainers' clock, for which records of a rank that has not returned count as stale.
  static constexpr uint64_t kMaxStaleNs = 10'000'000'000;

  // kWentBack: the first record after a return. kStale: written before the return, but read after kWentBack.
  enum class Verdict { kGoesOn, kWentBack, kStale };
  // Classifies a record. The records of a rank must be passed in the order in which it wrote them.
  Verdict classify(const segment::TensorRecord& record, int32_t rank) {
    Rank& writer = ranks_[rank];
    if (record.step < writer.step) ++writer.returns;
    writer.step = record.step;
    if (writer.returns > returns_) {  // this rank is the first that returns
      returns_ = writer.returns;
      writer.behind_since_ns = 0;
      return Verdict::kWentBack;
    }
    if (writer.returns < returns_) {  // other ranks have returned, this one not yet
      // The time is counted from the rank's own first stale record. If it were counted from the last return,
      // a run that returns again and again would make every record stale.
      if (writer.behind_since_ns == 0) writer.behind_since_ns = record.time_ns;
      if (record.time_ns - writer.behind_since_ns < kMaxStaleNs) return Verdict::kStale;
    }
    writer.returns = returns_;  // a rank that was behind for kMaxStaleNs is assumed not to return
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
  uint64_t returns_ = 0;  // largest Rank::returns
};

// Joins the parts of a weight tensor that the ranks of this node measured after one step into a snapshot,
// compares each snapshot with earlier ones of the tensor, and compares replicas. A tensor has one snapshot in
// each interval of steps. Thread-compatible.
class Weights {
 public:
  // Limit in bytes of the memory for histograms; a quarter of it is for snapshots that wait for a part.
  static constexpr uint64_t kMostBytes = uint64_t{512} << 20;
  explicit Weights(uint64_t most_bytes = kMostBytes)
      : most_pending_(most_bytes / 4), series_(most_bytes - most_bytes / 4) {}

  // Adds one record of a rank. `ranks_here` is the number of ranks of the run on this node. Returns the
  // snapshots that are complete now, in the order of steps. A record that comes too late for its snapshot, or
  // has only a checksum, completes none. If it shows that replicas differ, a snapshot without parts is
  // returned, which only lists the ranks that differ. *why: null, or why the record is invalid.
  std::vector<TensorSnapshot> add(const segment::TensorView& view, const segment::Identity& identity,
                                  size_t ranks_here, const char** why);

  // Must be called if an earlier agent has followed this run. A tensor's first snapshot in the run is then
  // unknown, unless its record is at the start of the run (may_be_first()).
  void set_followed_before() { was_followed_before_ = true; }
  // For the event weight_initial_unknown: returns, once per attempt, the step of a snapshot of a tensor whose
  // first snapshot in the run is unknown; else nullopt.
  std::optional<int64_t> take_initial_unknown();

  // All tensors of the model, and of each layer by its label, pooled over the last complete interval.
  // completed() returns all such pools of model and layers that became complete since its last call.
  const PoolSnapshot& model() const { return series_.model(); }
  const std::map<std::string, PoolSnapshot>& layers() const { return series_.layers(); }
  std::vector<PoolSnapshot> completed() { return series_.completed(); }
  // Sums over all tensors: elements held on this node, and elements of the whole tensors.
  using Held = WeightSeries::Held;
  Held held() const { return series_.held(); }
  const Replicas& replicas() const { return replicas_; }
  // Latest optimizer statistics; each tensor counts once, with any number of replicas and parts on this node.
  const OptimizerHealth& optimizer() const { return optimizer_; }
  // Number of snapshots that were dropped: memory or a table was full, a part never came, a record was stale.
  uint64_t snapshots_dropped() const { return series_.dropped() + dropped_; }
  uint64_t pending_bytes() const { return pending_bytes_; }  // histograms of snapshots that wait for a part
  uint64_t kept_bytes() const { return series_.bytes(); }    // histograms kept for comparison
  size_t known_tensors() const { return known_.size(); }

 private:
  struct PendingSnapshot {  // a snapshot that waits for parts from other ranks
    TensorSnapshot snapshot;
    std::set<int32_t> ranks;  // ranks that have reported their part
    bool is_first = false;    // may be the first snapshot of its tensor in the run
  };
  struct KnownTensor {                           // a tensor of which a record was read
    std::map<int64_t, PendingSnapshot> pending;  // by step
    int64_t last_step = -1;                      // step of the last complete snapshot
    // The last snapshot that was completed or dropped:
    std::set<int32_t> holders;     // ranks that have reported a part of it
    bool has_all_holders = false;  // it was complete, and no other rank has reported a part of it since
  };

  bool read(const segment::TensorView& view, const KnownTensor* known, Histogram* histogram,
            const char** why);
  void add_part(const segment::TensorView& view, const Histogram& histogram, PendingSnapshot* pending);
  // Whether no further part can come: each rank has reported its part, or a record of a later step.
  bool ranks_have_passed(int64_t step, const PendingSnapshot& pending) const;
  bool is_complete(const KnownTensor& known, int64_t step, const PendingSnapshot& pending) const;
  void finish(KnownTensor* known, std::vector<TensorSnapshot>* done);
  std::map<int64_t, PendingSnapshot>::node_type extract(KnownTensor* known, int64_t step);
  void drop(KnownTensor* known, int64_t step);
  void note_initial(const TensorSnapshot& snapshot);
  void stop_waiting_for_ranks(int64_t step);  // those that have not reached `step`
  // Completes or drops the oldest snapshots until the waiting ones fit into the memory limit.
  void limit_pending_bytes(std::vector<TensorSnapshot>* done);
  void store_optimizer(const TensorSnapshot& snapshot);
  // No snapshot of a step before this one will be completed any more. 0: unknown.
  int64_t first_open_step() const;
  // Whether the record may be of its tensor's first snapshot in the run.
  bool may_be_first(const segment::TensorRecord& record, const segment::Identity& identity) const;
  void begin_attempt(const segment::TensorRecord& record, const segment::Identity& identity);
  void restart(bool keeps_initial);  // true: keeps the first snapshots of the run

  const uint64_t most_pending_;
  std::map<TensorKey, KnownTensor> known_;
  HistogramReader reader_;
  Replicas replicas_;
  WeightSeries series_;
  OptimizerHealth optimizer_;
  int64_t last_removal_ = 0;  // step of the last removal of old tensors from optimizer_
  uint64_t dropped_ = 0;      // stale records, records of tensors beyond a limit, snapshots that lack a part
  uint64_t pending_bytes_ = 0;
  std::map<int32_t, int64_t> reached_;  // by rank: step of its latest record
  size_t ranks_here_ = 1;
  // Number of ranks that report weights; the largest number if unknown.
  size_t expected_ranks_ = std::numeric_limits<size_t>::max();
  std::map<int64_t, size_t> waiting_;  // by step: tensors that wait for a part
  AttemptWatch attempt_;
  RollbackWatch rollback_;
  bool was_followed_before_ = false;        // an earlier attempt, or an earlier agent, is known
  bool has_any_record_ = false;             // add() was called in any attempt
  std::optional<int64_t> initial_unknown_;  // result of the next take_initial_unknown()
  bool has_reported_initial_unknown_ = false;
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_WEIGHTS_H_
