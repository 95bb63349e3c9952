#include "agent/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace foreshock {
namespace {

constexpr size_t kMostTensors = 1 << 16;
constexpr size_t kMostPending =
    64;  // steps of a tensor that wait for a part: ranks are read one after the other

uint64_t whole_elements(const segment::TensorRecord& record) {
  uint64_t elements = 1;
  for (const int64_t size : record.shape) elements *= static_cast<uint64_t>(size);
  return elements;
}

TensorKey key_of(const segment::TensorRecord& record, const segment::Identity& identity) {
  TensorKey key;
  key.name = segment::text_of(record.name);
  // The parts of a distributed tensor say by themselves where they belong.
  if (identity.late_ready == 1 && whole_elements(record) == record.elements) {
    key.tensor_parallel = identity.tensor_parallel;
    key.pipeline_parallel = identity.pipeline_parallel;
    key.expert_parallel = identity.expert_parallel;
  }
  return key;
}

void start(const segment::TensorRecord& record, const segment::Identity& identity, const TensorKey& key,
           TensorSnapshot* snapshot) {
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

// NaN: not known.
double reduction(const segment::TensorView& view, segment::TensorReduction which) {
  const segment::Bytes payload = view.payload[segment::kTensorReductions];
  double value = std::numeric_limits<double>::quiet_NaN();
  if (payload.size() >= (which + 1) * sizeof value)
    std::memcpy(&value, payload.data() + which * sizeof value, sizeof value);
  return value;
}

// Another part's sums; `snapshot` counts it already.
void join_optimizer(const segment::TensorView& view, TensorSnapshot* snapshot) {
  const segment::Bytes payload = view.payload[segment::kTensorOptimizer];
  const OptimizerSums sums = OptimizerSums::of(payload, reduction(view, segment::kSumOfSquares),
                                               reduction(view, segment::kUpdateSumOfSquares));
  if (snapshot->optimizer)
    snapshot->optimizer->join(sums);
  else if (!payload.empty() && snapshot->parts.size() == 1)
    snapshot->optimizer = sums;
}

}  // namespace

std::vector<TensorSnapshot> Weights::take(const segment::TensorView& view, const segment::Identity& identity,
                                          size_t ranks_here, const char** why) {
  const segment::TensorRecord& record = view.record;
  *why = nullptr;
  begin_anew(record, identity);
  const std::vector<int32_t> odd = replicas_.add(record, identity, ranks_here);
  const TensorKey key = key_of(record, identity);
  if (known_.size() >= kMostTensors && !known_.contains(key)) {
    ++dropped_;
    return {};
  }
  Known& known = known_[key];
  std::vector<TensorSnapshot> done;
  if (record.step <= known.last_step) {  // put together already, without this replica
    if (!odd.empty()) {
      TensorSnapshot late;
      start(record, identity, key, &late);
      late.odd_ranks.assign(odd.begin(), odd.end());
      done.push_back(late);
    }
    return done;
  }
  Pending& pending = known.pending[record.step];
  if (pending.ranks.empty()) start(record, identity, key, &pending.snapshot);
  pending.is_first |= record.snapshot == 1;
  pending.snapshot.odd_ranks.insert(pending.snapshot.odd_ranks.end(), odd.begin(), odd.end());
  if (!add_part(view, identity, &known)) {
    known.pending.erase(record.step);
    *why = "its histogram does not hold its values";
    return {};
  }
  const bool is_whole = pending.snapshot.elements == pending.snapshot.whole_elements;
  if (is_whole || pending.ranks.size() >= ranks_here ||
      (known.ranks > 0 && pending.ranks.size() >= known.ranks)) {
    auto node = known.pending.extract(record.step);
    known.pending.erase(known.pending.begin(), known.pending.lower_bound(record.step));
    TensorSnapshot& snapshot = node.mapped().snapshot;
    take_optimizer(snapshot);
    series_.take(node.mapped().is_first, &snapshot);
    known.last_step = snapshot.step;
    done.push_back(std::move(snapshot));
  } else if (known.pending.size() > kMostPending) {
    for (const auto& [step, waiting] : known.pending)
      known.ranks = std::max(known.ranks, waiting.ranks.size());
    known.pending.erase(known.pending.begin());
  }
  return done;
}

void Weights::begin_anew(const segment::TensorRecord& record, const segment::Identity& identity) {
  if (!attempt_.is_new(record, identity)) return;
  known_.clear();
  series_.begin_anew();
  replicas_.begin_anew();
  optimizer_ = {};
  forgotten_ = 0;
}

bool Weights::add_part(const segment::TensorView& view, const segment::Identity& identity, Known* known) {
  const segment::TensorRecord& record = view.record;
  Pending& pending = known->pending[record.step];
  TensorSnapshot& snapshot = pending.snapshot;
  pending.ranks.push_back(identity.rank);
  snapshot.ranks = pending.ranks.size();
  TensorPart part;
  part.offset.assign(record.offset, record.offset + segment::kTensorDims);
  part.shape.assign(record.part, record.part + segment::kTensorDims);
  const auto is_there = std::find(snapshot.parts.begin(), snapshot.parts.end(), part);
  if (is_there != snapshot.parts.end()) return true;  // a replica's
  Histogram histogram;
  const auto type = static_cast<DType>(record.dtype);
  const segment::Bytes payload = view.payload[segment::kTensorHistogram];
  const bool is_read = record.form == segment::HistogramForm::kValues
                           ? reader_.read_values(payload, type, record.elements, &histogram)
                           : reader_.read_counters(payload, type, record.elements, &histogram);
  if (!is_read) return false;
  snapshot.parts.push_back(std::move(part));
  merge(histogram, &snapshot.histogram);
  snapshot.elements += record.elements;
  snapshot.sum_of_squares += reduction(view, segment::kSumOfSquares);
  const double sum = reduction(view, segment::kUpdateSumMagnitude),
               most = reduction(view, segment::kUpdateMaxMagnitude);
  join_optimizer(view, &snapshot);
  pending.update_known &= !std::isnan(sum) && !std::isnan(most);
  if (pending.update_known) {
    snapshot.update_sum_magnitude = snapshot.update_sum_magnitude.value_or(0) + sum;
    snapshot.update_max_magnitude = std::max(snapshot.update_max_magnitude.value_or(0), most);
  } else {
    snapshot.update_sum_magnitude = snapshot.update_max_magnitude = std::nullopt;
  }
  return true;
}

// The last word on each tensor, of tensors that are still shown: the others were taken apart differently.
void Weights::take_optimizer(const TensorSnapshot& snapshot) {
  if (!snapshot.optimizer) return;
  optimizer_.take(snapshot.key, static_cast<uint32_t>(snapshot.shape.size()), snapshot.step,
                  *snapshot.optimizer);
  const auto interval = static_cast<int64_t>(snapshot.interval);
  if (snapshot.step - forgotten_ < interval) return;
  forgotten_ = snapshot.step;
  optimizer_.forget_before(snapshot.step - 3 * interval);
}

}  // namespace foreshock
