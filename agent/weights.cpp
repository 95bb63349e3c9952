#include "agent/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "agent/fnv.h"
#include "shadow/stored_histogram.h"

namespace foreshock {
namespace {

constexpr size_t kMostTensors = 1 << 16;
constexpr size_t kMostPending =
    64;  // steps of a tensor that wait for a part: ranks are read one after the other

std::optional<double> larger(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a || !b) return a ? a : b;
  return std::max(*a, *b);
}

std::optional<double> value_of(const std::optional<Wasserstein>& distance) {
  return distance ? std::optional<double>(distance->value) : std::nullopt;
}

std::optional<double> pooled(bool is_known, const Histogram& now, const Histogram& before) {
  if (!is_known || now.finite == 0 || before.finite == 0) return std::nullopt;
  return wasserstein(before, now).value;
}

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

void start(const segment::TensorRecord& record, TensorSnapshot* snapshot) {
  snapshot->name = segment::text_of(record.name);
  snapshot->layer = segment::text_of(record.layer);
  snapshot->step = record.step;
  snapshot->time = 1e-9 * static_cast<double>(record.time_ns);
  snapshot->dtype = static_cast<DType>(record.dtype);
  snapshot->interval = record.interval;
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
      start(record, &late);
      late.odd_ranks.assign(odd.begin(), odd.end());
      done.push_back(late);
    }
    return done;
  }
  known.saw_first |= record.snapshot == 1;
  Pending& pending = known.pending[record.step];
  if (pending.ranks.empty()) start(record, &pending.snapshot);
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
    done.push_back(finish(&known, std::move(node.mapped())));
  } else if (known.pending.size() > kMostPending) {
    for (const auto& [step, waiting] : known.pending)
      known.ranks = std::max(known.ranks, waiting.ranks.size());
    known.pending.erase(known.pending.begin());
  }
  return done;
}

// A run that goes on after a restart may repeat steps: what was known of them is about other values.
void Weights::begin_anew(const segment::TensorRecord& record, const segment::Identity& identity) {
  if (identity.start_time_ns <= begun_ns_) return;
  begun_ns_ = record.time_ns;  // all ranks of this attempt have started before
  known_.clear();
  building_ = {};
  replicas_.begin_anew();
  bytes_ = 0;
}

bool Weights::add_part(const segment::TensorView& view, const segment::Identity& identity, Known* known) {
  const segment::TensorRecord& record = view.record;
  Pending& pending = known->pending[record.step];
  TensorSnapshot& snapshot = pending.snapshot;
  pending.ranks.push_back(identity.rank);
  snapshot.ranks = pending.ranks.size();
  Part part;
  part.offset.assign(record.offset, record.offset + segment::kTensorDims);
  part.shape.assign(record.part, record.part + segment::kTensorDims);
  if (pending.parts.contains(part)) return true;  // a replica's
  Histogram histogram;
  const auto type = static_cast<DType>(record.dtype);
  const segment::Bytes payload = view.payload[segment::kTensorHistogram];
  const bool is_read = record.form == segment::HistogramForm::kValues
                           ? reader_.read_values(payload, type, record.elements, &histogram)
                           : reader_.read_counters(payload, type, record.elements, &histogram);
  if (!is_read) return false;
  pending.parts[part] = identity.rank;
  snapshot.parts = pending.parts.size();
  merge(histogram, &snapshot.histogram);
  snapshot.elements += record.elements;
  snapshot.sum_of_squares += reduction(view, segment::kSumOfSquares);
  const double sum = reduction(view, segment::kUpdateSumMagnitude),
               most = reduction(view, segment::kUpdateMaxMagnitude);
  pending.update_known &= !std::isnan(sum) && !std::isnan(most);
  if (pending.update_known) {
    snapshot.update_sum_magnitude = snapshot.update_sum_magnitude.value_or(0) + sum;
    snapshot.update_max_magnitude = std::max(snapshot.update_max_magnitude.value_or(0), most);
  } else {
    snapshot.update_sum_magnitude = snapshot.update_max_magnitude = std::nullopt;
  }
  return true;
}

TensorSnapshot Weights::finish(Known* known, Pending&& pending) {
  TensorSnapshot snapshot = std::move(pending.snapshot);
  if (snapshot.elements != known->elements || snapshot.interval != known->interval)
    known->previous_step = -1;  // other parts or another interval: a new series
  if (snapshot.elements != known->elements) known->initial_step = -1;
  compare(known, &snapshot);
  const std::string stored = store(snapshot.histogram);
  snapshot.histogram_hash = fnv1a(stored);
  const bool is_first = known->initial_step < 0 && known->saw_first && known->last_step < 0;
  known->last_step = snapshot.step;
  add_to_model(snapshot, *known);
  bytes_ -= known->previous.size();
  known->previous.clear();
  if (bytes_ + stored.size() <= kMostBytes) {
    known->previous = stored;
    known->previous_step = snapshot.step;
    bytes_ += stored.size();
  } else {
    known->previous_step = -1;
    ++dropped_;
  }
  if (is_first && bytes_ + stored.size() <= kMostBytes / 2) {
    known->initial = stored;
    known->initial_step = snapshot.step;
    bytes_ += stored.size();
  }
  known->elements = snapshot.elements;
  known->interval = snapshot.interval;
  return snapshot;
}

void Weights::compare(Known* known, TensorSnapshot* snapshot) {
  const auto distance = [&](const std::string& stored) -> std::optional<Wasserstein> {
    Histogram before;
    if (!restore(stored, &before) || before.finite == 0 || snapshot->histogram.finite == 0)
      return std::nullopt;
    return wasserstein(before, snapshot->histogram);
  };
  const auto interval = static_cast<int64_t>(snapshot->interval);
  if (known->previous_step >= 0 && known->previous_step == snapshot->step - interval) {
    snapshot->previous_step = known->previous_step;
    snapshot->previous = distance(known->previous);
  }
  if (known->initial_step >= 0) {
    snapshot->initial_step = known->initial_step;
    snapshot->initial = distance(known->initial);
  }
}

void Weights::add_to_model(const TensorSnapshot& snapshot, const Known& known) {
  const int64_t window = snapshot.step / static_cast<int64_t>(snapshot.interval);
  if (window != building_.window || snapshot.interval != building_.interval) {
    forget_before(snapshot.step - 3 * static_cast<int64_t>(snapshot.interval));
    building_ = {};
    building_.window = window;
    building_.interval = snapshot.interval;
    building_.snapshot.step = window * static_cast<int64_t>(snapshot.interval);
    building_.snapshot.interval = snapshot.interval;
  }
  ModelSnapshot& model = building_.snapshot;
  merge(snapshot.histogram, &building_.now);
  const auto add_before = [](bool is_there, const std::string& stored, Histogram* sum, bool* is_known) {
    Histogram before;
    *is_known = *is_known && is_there && restore(stored, &before);
    if (*is_known) merge(before, sum);
  };
  add_before(snapshot.previous_step.has_value(), known.previous, &building_.previous,
             &building_.previous_known);
  add_before(snapshot.initial_step.has_value(), known.initial, &building_.initial, &building_.initial_known);
  ++model.tensors;
  model.elements += snapshot.elements;
  model.previous_max = larger(model.previous_max, value_of(snapshot.previous));
  model.initial_max = larger(model.initial_max, value_of(snapshot.initial));
  building_.sum_of_squares += snapshot.sum_of_squares;
  building_.update_known &= snapshot.update_sum_magnitude.has_value();
  if (snapshot.update_sum_magnitude && snapshot.elements > 0) {
    building_.update_sum += *snapshot.update_sum_magnitude;
    const double mean = *snapshot.update_sum_magnitude / static_cast<double>(snapshot.elements);
    model.update_mean_abs_max = larger(model.update_mean_abs_max, mean);
  }
  if (!snapshot.layer.empty()) {
    ModelSnapshot::Layer& layer = model.layers[snapshot.layer];
    layer.previous = larger(layer.previous, value_of(snapshot.previous));
    layer.initial = larger(layer.initial, value_of(snapshot.initial));
  }
  if (model.tensors == known_.size()) close_model();
}

// What nobody has shown for so long is not there any more: the model was taken apart differently.
void Weights::forget_before(int64_t step) {
  std::erase_if(known_, [&](const auto& each) {
    const Known& known = each.second;
    const bool is_old = known.last_step >= 0 && known.last_step < step && known.pending.empty();
    if (is_old) bytes_ -= known.previous.size() + known.initial.size();
    return is_old;
  });
}

void Weights::close_model() {
  ModelSnapshot& model = building_.snapshot;
  const auto elements = static_cast<double>(model.elements);
  model.previous_pooled = pooled(building_.previous_known, building_.now, building_.previous);
  model.initial_pooled = pooled(building_.initial_known, building_.now, building_.initial);
  if (elements > 0) model.rms = std::sqrt(building_.sum_of_squares / elements);
  if (elements > 0 && building_.update_known) model.update_mean_abs = building_.update_sum / elements;
  if (!building_.previous_known) model.previous_max = std::nullopt;
  if (!building_.initial_known) model.initial_max = std::nullopt;
  model_ = model;
}

}  // namespace foreshock
