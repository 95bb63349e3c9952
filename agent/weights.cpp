// Joins the parts of weight tensors that the ranks of a node report into snapshots (a tensor at one step).
// Ranks are read one after the other, so records of one step arrive at different times; a snapshot is pending
// until all its parts have arrived.
#include "agent/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <ranges>
#include <utility>

#include "agent/tensor.h"
#include "segment/layout.h"
#include "segment/reader.h"

namespace foreshock {
namespace {

constexpr size_t kMostTensors = 1 << 16;  // records of further tensors are dropped
// Limits of the snapshots of one tensor that wait for the parts of other ranks: kMostPending of them, or
// kFewPending if the oldest waits for more than kMaxWaitSeconds. If a limit is exceeded, the ranks whose
// parts are missing are assumed to report no weights.
constexpr size_t kMostPending = 64, kFewPending = 2;
constexpr double kMaxWaitSeconds = 10;  // by the trainers' clock

uint64_t whole_elements(const segment::TensorRecord& record) {
  uint64_t elements = 1;
  for (const int64_t size : record.shape) elements *= static_cast<uint64_t>(size);
  return elements;
}

TensorKey key_of(const segment::TensorRecord& record, const segment::Identity& identity) {
  TensorKey key;
  key.name = segment::text_of(record.name);
  // Coordinates (tensor-, pipeline- and expert-parallel rank; while they are unknown, the rank) distinguish
  // whole tensors of one name that model-parallel ranks hold. A part of a tensor does not need them, since
  // its record has the part's offset.
  if (whole_elements(record) == record.elements) set_coordinates(identity, &key);
  return key;
}

// Initializes a snapshot, without parts, from the record of its first part.
void begin_snapshot(const segment::TensorRecord& record, const segment::Identity& identity,
                    const TensorKey& key, TensorSnapshot* snapshot) {
  snapshot->key = key;
  snapshot->layer = segment::text_of(record.layer);
  snapshot->step = record.step;
  snapshot->time = 1e-9 * static_cast<double>(record.time_ns);
  snapshot->dtype = static_cast<DType>(record.dtype);
  snapshot->interval = record.interval;
  snapshot->attempt = identity.attempt;
  snapshot->whole_elements = whole_elements(record);
  snapshot->shape.assign(record.shape, record.shape + record.dims);
}

TensorPart part_of(const segment::TensorRecord& record) {
  TensorPart part;
  part.offset.assign(record.offset, record.offset + segment::kTensorDims);
  part.shape.assign(record.part, record.part + segment::kTensorDims);
  return part;
}

// Whether the record is the first of its tensor in its process (snapshot 1), in the run's first interval.
bool is_at_start_of_run(const segment::TensorRecord& record) {
  return record.snapshot == 1 && static_cast<uint64_t>(record.step) <= record.interval;
}

uint64_t bytes_of(const Histogram& histogram) { return histogram.bins.capacity() * sizeof(HistogramBin); }

// Returns one number of the record's reductions, or NaN if it is unknown.
double reduction(const segment::TensorView& view, segment::TensorReduction which) {
  const segment::Bytes payload = view.payload[segment::kTensorReductions];
  double value = std::numeric_limits<double>::quiet_NaN();
  if (payload.size() >= (which + 1) * sizeof value)
    std::memcpy(&value, payload.data() + which * sizeof value, sizeof value);
  return value;
}

// Returns the number of values whose change in this step is known. If the record has no such number, it has
// the change of all values or of none.
uint64_t updated_elements(const segment::TensorView& view) {
  const double elements = reduction(view, segment::kUpdateElements);
  if (std::isnan(reduction(view, segment::kUpdateSumMagnitude)) ||
      std::isnan(reduction(view, segment::kUpdateMaxMagnitude)))
    return 0;
  if (!(elements >= 0)) return view.record.elements;
  return static_cast<uint64_t>(std::min(elements, static_cast<double>(view.record.elements)));
}

void join_update(const segment::TensorView& view, TensorSnapshot* snapshot) {
  const uint64_t elements = updated_elements(view);
  if (elements == 0) return;
  snapshot->update_elements += elements;
  snapshot->update_sum_magnitude =
      snapshot->update_sum_magnitude.value_or(0) + reduction(view, segment::kUpdateSumMagnitude);
  snapshot->update_max_magnitude =
      std::max(snapshot->update_max_magnitude.value_or(0), reduction(view, segment::kUpdateMaxMagnitude));
}

void join_sample(const segment::TensorView& view, TensorSnapshot* snapshot) {
  const double elements = reduction(view, segment::kSampleElements);
  const double unmoved = reduction(view, segment::kSampleUnmoved);
  if (!(elements > 0 && elements <= static_cast<double>(view.record.elements)) ||
      !(unmoved >= 0 && unmoved <= elements))
    return;
  snapshot->sample_elements += static_cast<uint64_t>(elements);
  snapshot->sample_unmoved += static_cast<uint64_t>(unmoved);
}

// Adds the optimizer sums of a part in snapshot->parts. If the first part has none, the snapshot gets none.
void join_optimizer(const segment::TensorView& view, TensorSnapshot* snapshot) {
  const segment::Bytes payload = view.payload[segment::kTensorOptimizer];
  // The sum of squares of the values whose change is known. NaN: not reported; all values are used.
  const double compared_squares = reduction(view, segment::kComparedSumOfSquares);
  const OptimizerSums sums = OptimizerSums::from_payload(
      payload, std::isnan(compared_squares) ? reduction(view, segment::kSumOfSquares) : compared_squares,
      reduction(view, segment::kUpdateSumOfSquares));
  if (snapshot->optimizer)
    snapshot->optimizer->join(sums);
  else if (!payload.empty() && snapshot->parts.size() == 1)
    snapshot->optimizer = sums;
}

}  // namespace

// Adds a record of one rank. Returns the snapshots that are complete now. *why: why the record is invalid.
std::vector<TensorSnapshot> Weights::add(const segment::TensorView& view, const segment::Identity& identity,
                                         size_t ranks_here, const char** why) {
  const segment::TensorRecord& record = view.record;
  *why = nullptr;
  begin_attempt(record, identity);
  const RollbackWatch::Verdict verdict = rollback_.classify(record, identity.rank);
  if (verdict == RollbackWatch::Verdict::kStale) {  // the record is from before a rollback of the run
    ++dropped_;
    return {};
  }
  // A process may also return to its own start with another model, as in cross-validation.
  if (verdict == RollbackWatch::Verdict::kWentBack) restart(/*keeps_initial=*/!is_at_start_of_run(record));
  ranks_here_ = ranks_here;
  reached_[identity.rank] = record.step;
  series_.expect_none_before(first_open_step());  // also here, since the call at the end may be skipped
  const std::vector<int32_t> odd = replicas_.add(record, identity, ranks_here);  // ranks that differ
  const TensorKey key = key_of(record, identity);
  const auto found = known_.find(key);
  std::vector<TensorSnapshot> done;
  const bool is_checksum = record.form == segment::HistogramForm::kNone;  // a replica that sends no histogram
  if (is_checksum || (found != known_.end() && record.step <= found->second.last_step)) {
    // This rank's part is late: the snapshot was completed without it. Later ones must wait for the rank.
    if (!is_checksum && found->second.holders.insert(identity.rank).second)
      found->second.has_all_holders = false;
    if (odd.empty()) return done;
    // A snapshot without parts, which only reports that a replica differs.
    TensorSnapshot& late = done.emplace_back();
    begin_snapshot(record, identity, key, &late);
    late.odd_ranks.assign(odd.begin(), odd.end());
    return done;
  }
  if (found == known_.end() && known_.size() >= kMostTensors) {
    ++dropped_;
    return done;
  }
  Histogram histogram;
  if (!read(view, found == known_.end() ? nullptr : &found->second, &histogram, why)) return done;
  KnownTensor& known = known_[key];
  PendingSnapshot& pending = known.pending[record.step];
  if (pending.ranks.empty()) {
    begin_snapshot(record, identity, key, &pending.snapshot);
    ++waiting_[record.step];
  }
  pending.is_first |= may_be_first(record, identity);
  pending.snapshot.odd_ranks.insert(pending.snapshot.odd_ranks.end(), odd.begin(), odd.end());
  if (pending.ranks.insert(identity.rank).second) add_part(view, histogram, &pending);
  const auto& [oldest, waiting] = *known.pending.begin();
  const double waited = 1e-9 * static_cast<double>(record.time_ns) - waiting.snapshot.time;
  if (known.pending.size() > kMostPending || (known.pending.size() > kFewPending && waited > kMaxWaitSeconds))
    stop_waiting_for_ranks(oldest + 1);  // then finish() completes or drops the oldest step
  finish(&known, &done);
  limit_pending_bytes(&done);
  series_.expect_none_before(first_open_step());
  return done;
}

// Restarts the series if the record is of a new attempt (the job was restarted). An attempt from the start of
// the run gets its own first snapshots. One that continues from a checkpoint is compared with the known ones.
void Weights::begin_attempt(const segment::TensorRecord& record, const segment::Identity& identity) {
  if (!attempt_.is_new(record, identity)) return;
  restart(/*keeps_initial=*/!is_at_start_of_run(record));
  rollback_.restart();
  was_followed_before_ |= has_any_record_;  // this agent has followed an earlier attempt
  has_any_record_ = true;
  has_reported_initial_unknown_ = false;
}

void Weights::restart(bool keeps_initial) {
  known_.clear();
  waiting_.clear();
  pending_bytes_ = 0;
  reached_.clear();
  expected_ranks_ = std::numeric_limits<size_t>::max();  // all ranks of the node
  series_.restart(keeps_initial);
  replicas_.restart();
  optimizer_ = {};
  last_removal_ = 0;
}

// Whether a record may belong to the first snapshot of its tensor in the run. It must be the first of its
// process. Also, its process must be at the start of the run, or no earlier attempt of the run may be known.
bool Weights::may_be_first(const segment::TensorRecord& record, const segment::Identity& identity) const {
  if (record.snapshot != 1) return false;
  return is_at_start_of_run(record) || !(was_followed_before_ || identity.attempt > 0);
}

std::optional<int64_t> Weights::take_initial_unknown() { return std::exchange(initial_unknown_, {}); }

// Reads the histogram of a part, which stays empty if a replica on another rank has reported the part.
// Returns false and sets *why if the record is invalid. `known`: the tensor's earlier snapshots; may be null.
bool Weights::read(const segment::TensorView& view, const KnownTensor* known, Histogram* histogram,
                   const char** why) {
  const segment::TensorRecord& record = view.record;
  if (known != nullptr && known->pending.contains(record.step)) {
    const TensorSnapshot& snapshot = known->pending.at(record.step).snapshot;
    if (std::ranges::find(snapshot.parts, part_of(record)) != snapshot.parts.end()) return true;
    if (whole_elements(record) != snapshot.whole_elements ||
        record.elements > snapshot.whole_elements - snapshot.elements) {
      *why = "it does not fit the other parts of its tensor";
      return false;
    }
  }
  const auto type = static_cast<DType>(record.dtype);
  const segment::Bytes payload = view.payload[segment::kTensorHistogram];
  const bool is_read = record.form == segment::HistogramForm::kValues
                           ? reader_.read_values(payload, type, record.elements, histogram)
                           : reader_.read_counters(payload, type, record.elements, histogram);
  if (!is_read) *why = "its histogram does not hold its values";
  return is_read;
}

void Weights::add_part(const segment::TensorView& view, const Histogram& histogram,
                       PendingSnapshot* pending) {
  const segment::TensorRecord& record = view.record;
  TensorSnapshot& snapshot = pending->snapshot;
  snapshot.ranks = pending->ranks.size();
  TensorPart part = part_of(record);
  if (std::ranges::find(snapshot.parts, part) != snapshot.parts.end()) return;  // reported by a replica
  snapshot.parts.push_back(std::move(part));
  pending_bytes_ -= bytes_of(snapshot.histogram);
  merge(histogram, &snapshot.histogram);
  pending_bytes_ += bytes_of(snapshot.histogram);
  snapshot.elements += record.elements;
  snapshot.sum_of_squares += reduction(view, segment::kSumOfSquares);
  join_update(view, &snapshot);
  join_sample(view, &snapshot);
  join_optimizer(view, &snapshot);
}

// Whether every rank that reports weights has reported this step of a tensor, or a later step of any tensor.
// reached_: the last step of each rank.
bool Weights::ranks_have_passed(int64_t step, const PendingSnapshot& pending) const {
  return reached_.size() >= std::min(ranks_here_, expected_ranks_) &&
         std::ranges::all_of(reached_, [&](const auto& rank) {
           return rank.second > step || pending.ranks.contains(rank.first);
         });
}

// Whether all ranks of this node that hold a part of the tensor have reported their part. Some ranks may hold
// none: the holders of the last snapshot suffice once no other rank can be expected.
bool Weights::is_complete(const KnownTensor& known, int64_t step, const PendingSnapshot& pending) const {
  if (pending.snapshot.elements == pending.snapshot.whole_elements) return true;
  if (pending.ranks.size() >= ranks_here_) return true;
  return std::ranges::includes(pending.ranks, known.holders) &&
         (known.has_all_holders || ranks_have_passed(step, pending));
}

// Moves the snapshots that need not wait any longer to *done, in the order of steps. Drops a snapshot that
// lacks the part of a rank that had a part before, since such a snapshot cannot be compared with others.
void Weights::finish(KnownTensor* known, std::vector<TensorSnapshot>* done) {
  int64_t newest = -1;  // snapshots up to this step need not wait any longer
  for (const auto& [step, pending] : known->pending)
    if (is_complete(*known, step, pending) || ranks_have_passed(step, pending)) newest = step;
  while (!known->pending.empty() && known->pending.begin()->first <= newest) {
    const auto& [step, pending] = *known->pending.begin();
    const bool is_whole = is_complete(*known, step, pending);
    known->holders = pending.ranks;
    known->has_all_holders = is_whole;
    if (!is_whole) {
      drop(known, step);
      continue;
    }
    auto node = extract(known, step);
    TensorSnapshot& snapshot = node.mapped().snapshot;
    known->last_step = snapshot.step;
    store_optimizer(snapshot);
    series_.add(node.mapped().is_first, &snapshot);
    note_initial(snapshot);
    done->push_back(std::move(snapshot));
  }
}

void Weights::drop(KnownTensor* known, int64_t step) {
  extract(known, step);
  ++dropped_;
}

std::map<int64_t, Weights::PendingSnapshot>::node_type Weights::extract(KnownTensor* known, int64_t step) {
  auto node = known->pending.extract(step);
  pending_bytes_ -= bytes_of(node.mapped().snapshot.histogram);
  const auto waiting = waiting_.find(step);
  if (--waiting->second == 0) waiting_.erase(waiting);
  return node;
}

// Returns a step such that no snapshot of an earlier step will be completed any more, or 0 if unknown.
int64_t Weights::first_open_step() const {
  if (reached_.empty() || reached_.size() < std::min(ranks_here_, expected_ranks_)) return 0;
  const auto by_step = [](const auto& a, const auto& b) { return a.second < b.second; };
  const int64_t reached = std::ranges::min_element(reached_, by_step)->second;
  return waiting_.empty() ? reached : std::min(reached, waiting_.begin()->first);
}

// Stores, once per attempt, the step of a snapshot whose tensor has no known first snapshot.
void Weights::note_initial(const TensorSnapshot& snapshot) {
  if (has_reported_initial_unknown_ || series_.initial_step(snapshot.key) >= 0) return;
  has_reported_initial_unknown_ = true;
  initial_unknown_ = snapshot.step;
}

// Stops waiting for ranks that have not reached `step`, and assumes that they report no weights any more.
void Weights::stop_waiting_for_ranks(int64_t step) {
  std::erase_if(reached_, [step](const auto& rank) { return rank.second < step; });
  expected_ranks_ = reached_.size();
}

void Weights::limit_pending_bytes(std::vector<TensorSnapshot>* done) {
  // Returns the oldest step with a waiting snapshot, and the tensor of the snapshot; null if none waits.
  const auto oldest = [this] {
    std::pair<int64_t, KnownTensor*> first = {std::numeric_limits<int64_t>::max(), nullptr};
    for (auto& [key, known] : known_)
      if (!known.pending.empty() && known.pending.begin()->first < first.first)
        first = {known.pending.begin()->first, &known};
    return first;
  };
  if (pending_bytes_ <= most_pending_) return;
  // Completes what it can without the ranks that delay the oldest snapshot, then drops the oldest snapshots.
  stop_waiting_for_ranks(oldest().first);
  for (auto& [key, known] : known_) finish(&known, done);
  while (pending_bytes_ > most_pending_) {
    const auto [step, known] = oldest();
    if (known == nullptr) return;
    drop(known, step);
  }
}

// Stores the latest optimizer statistics of each tensor. Once per interval, drops tensors without statistics
// for three intervals: they no longer exist, because the trainer now divides the model into other tensors.
void Weights::store_optimizer(const TensorSnapshot& snapshot) {
  if (!snapshot.optimizer) return;
  optimizer_.set(snapshot.key, static_cast<uint32_t>(snapshot.shape.size()), snapshot.step,
                 *snapshot.optimizer);
  const auto interval = static_cast<int64_t>(snapshot.interval);
  if (snapshot.step - last_removal_ < interval) return;
  last_removal_ = snapshot.step;
  optimizer_.forget_before(snapshot.step - 3 * interval);
}

}  // namespace foreshock
