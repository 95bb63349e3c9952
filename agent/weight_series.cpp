#include "agent/weight_series.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "agent/fnv.h"
#include "shadow/stored_histogram.h"

namespace foreshock {
namespace {

std::optional<double> larger(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a || !b) return a ? a : b;
  return std::max(*a, *b);
}

std::optional<Wasserstein> distance(bool is_known, const Histogram& before, const Histogram& now) {
  if (!is_known || now.finite == 0 || before.finite == 0) return std::nullopt;
  return wasserstein(before, now);
}

int64_t window_of(const TensorSnapshot& snapshot) {
  return snapshot.step / static_cast<int64_t>(snapshot.interval);
}

void close_pool(double squares, double updates, PoolSnapshot* pool) {
  const auto elements = static_cast<double>(pool->elements);
  if (elements == 0) return;
  pool->rms = std::sqrt(squares / elements);
  if (pool->update_elements > 0) pool->update_mean_abs = updates / static_cast<double>(pool->update_elements);
}

}  // namespace

void WeightSeries::take(bool is_first, TensorSnapshot* snapshot) {
  snapshot->stored = foreshock::store(snapshot->histogram);
  Group& group = groups_[snapshot->layer];
  const bool is_in_order = enter(&group, *snapshot);
  Tensor& tensor = tensors_[snapshot->key];
  if (tensor.last.step >= 0 && tensor.last.layer != snapshot->layer) leave(tensor.last.layer, snapshot->key);
  compare(tensor, snapshot);
  keep(is_first, *snapshot, &tensor);
  if (!is_in_order || tensor.previous.empty()) return;
  group.members.insert(snapshot->key);
  group.seen.insert(snapshot->key);
  if (!group.is_first && group.seen.size() == group.members.size()) complete(snapshot->layer, &group);
}

// A tensor is a member of one group: that of the layer which it was last said to belong to.
void WeightSeries::leave(const std::string& layer, const TensorKey& key) {
  const auto found = groups_.find(layer);
  if (found == groups_.end()) return;
  Group& group = found->second;
  group.members.erase(key);
  group.seen.erase(key);
  if (!group.members.empty()) return;
  forget(&group.previous);
  forget(&group.initial);
  groups_.erase(found);
}

void WeightSeries::compare(const Tensor& tensor, TensorSnapshot* snapshot) const {
  const auto to = [&](const std::string& stored) {
    Histogram before;
    return distance(restore(stored, &before), before, snapshot->histogram);
  };
  // Other parts or another interval: a new series.
  const bool is_same = tensor.last.elements == snapshot->elements;
  const auto interval = static_cast<int64_t>(snapshot->interval);
  if (is_same && tensor.last.interval == snapshot->interval && tensor.previous_step >= 0 &&
      tensor.previous_step == snapshot->step - interval) {
    snapshot->previous_step = tensor.previous_step;
    snapshot->previous = to(tensor.previous);
  }
  if (is_same && tensor.initial_step >= 0) {
    snapshot->initial_step = tensor.initial_step;
    snapshot->initial = to(tensor.initial);
  }
}

void WeightSeries::keep(bool is_first, const TensorSnapshot& snapshot, Tensor* tensor) {
  const bool is_new = tensor->last.step < 0;
  if (tensor->last.elements != snapshot.elements) {
    forget(&tensor->initial);
    tensor->initial_step = -1;
  }
  forget(&tensor->previous);
  const bool is_kept = store(snapshot.stored, most_bytes_, &tensor->previous);
  tensor->previous_step = is_kept ? snapshot.step : -1;
  if (is_new && is_first && store(snapshot.stored, most_bytes_ / 2, &tensor->initial))
    tensor->initial_step = snapshot.step;
  tensor->last = snapshot;
  tensor->last.histogram = {};
  tensor->last.stored = {};
}

void WeightSeries::forget(std::string* stored) {
  bytes_ -= stored->size();
  *stored = {};
}

bool WeightSeries::store(const std::string& bytes, uint64_t limit, std::string* to) {
  if (bytes_ + bytes.size() > limit) {
    ++dropped_;
    return false;
  }
  forget(to);
  *to = bytes;
  bytes_ += bytes.size();
  return true;
}

// False when the group has gone on: its tensors come from ranks that are read one after the other.
bool WeightSeries::enter(Group* group, const TensorSnapshot& snapshot) {
  const int64_t window = window_of(snapshot);
  const bool is_new_interval = snapshot.interval != group->interval;
  if (!is_new_interval && window <= group->window) return window == group->window;
  if (group->is_first && group->window >= 0 && !is_new_interval) {
    uint64_t elements = 0;
    const Histogram before = pooled(*group, &Tensor::previous, &elements);
    store_previous(group, foreshock::store(before), elements);
    group->is_first = false;
  }
  if (is_new_interval) group->previous_window = -1;
  forget_before(group, snapshot.step - 3 * static_cast<int64_t>(snapshot.interval));
  group->window = window;
  group->interval = snapshot.interval;
  group->seen.clear();
  return true;
}

// What nobody has shown for so long is not there any more: the model was taken apart differently.
void WeightSeries::forget_before(Group* group, int64_t step) {
  std::erase_if(group->members, [&](const TensorKey& key) {
    Tensor& tensor = tensors_[key];
    if (tensor.last.step >= step) return false;
    forget(&tensor.previous);
    forget(&tensor.initial);
    return tensors_.erase(key) > 0;
  });
}

// Of all members, those that have it; `elements` of these.
Histogram WeightSeries::pooled(const Group& group, std::string Tensor::*stored, uint64_t* elements) const {
  Histogram sum;
  *elements = 0;
  for (const TensorKey& key : group.members) {
    const Tensor& tensor = tensors_.at(key);
    Histogram one;
    if (!restore(tensor.*stored, &one)) continue;
    merge(one, &sum);
    *elements += tensor.last.elements;
  }
  return sum;
}

WeightSeries::Sums WeightSeries::sums_of(const std::string& layer, const Group& group) const {
  Sums sums;
  PoolSnapshot& pool = sums.snapshot;
  pool.layer = layer;
  pool.interval = group.interval;
  pool.step = group.window * static_cast<int64_t>(group.interval);
  pool.tensors = group.members.size();
  sums.now = pooled(group, &Tensor::previous, &pool.elements);
  for (const TensorKey& key : group.members) {
    const TensorSnapshot& last = tensors_.at(key).last;
    pool.time = std::max(pool.time, last.time);
    if (last.previous && last.previous->value >= pool.previous_max.value_or(0)) pool.moved_most = key.name;
    pool.previous_max = larger(pool.previous_max, value_of(last.previous));
    pool.initial_max = larger(pool.initial_max, value_of(last.initial));
    sums.previous_known &= last.previous.has_value();
    sums.initial_known &= last.initial.has_value();
    sums.squares += last.sum_of_squares;
    if (!last.update_sum_magnitude || last.update_elements == 0) continue;
    sums.updates += *last.update_sum_magnitude;
    pool.update_elements += last.update_elements;
    const double mean = *last.update_sum_magnitude / static_cast<double>(last.update_elements);
    pool.update_mean_abs_max = larger(pool.update_mean_abs_max, mean);
  }
  return sums;
}

// The first snapshots of all members, once all of them have one.
void WeightSeries::set_first(Group* group, uint64_t elements) {
  if (group->initial_elements == elements) return;
  forget(&group->initial);
  group->initial_elements = 0;
  uint64_t with_first = 0;
  const Histogram first = pooled(*group, &Tensor::initial, &with_first);
  if (with_first == elements && store(foreshock::store(first), most_bytes_, &group->initial))
    group->initial_elements = elements;
}

void WeightSeries::store_previous(Group* group, const std::string& stored, uint64_t elements) {
  forget(&group->previous);
  group->previous_window = store(stored, most_bytes_, &group->previous) ? group->window : -1;
  group->previous_elements = elements;
}

void WeightSeries::complete(const std::string& layer, Group* group) {
  Sums sums = sums_of(layer, *group);
  PoolSnapshot& pool = sums.snapshot;
  set_first(group, pool.elements);
  sums.previous_known &= group->previous_window == group->window - 1 &&
                         group->previous_elements == pool.elements &&
                         restore(group->previous, &sums.previous);
  sums.initial_known &= group->initial_elements == pool.elements && restore(group->initial, &sums.initial);
  pool.previous = distance(sums.previous_known, sums.previous, sums.now);
  pool.initial = distance(sums.initial_known, sums.initial, sums.now);
  const std::string stored = foreshock::store(sums.now);
  pool.histogram_hash = fnv1a(stored);
  close_pool(sums.squares, sums.updates, &pool);
  store_previous(group, stored, pool.elements);
  if (!layer.empty()) {
    layers_[layer] = pool;
    completed_.push_back(pool);
  }
  add_to_model(sums, group->window);
}

// Groups that a model of this step has: what is not there any more takes no part.
size_t WeightSeries::groups_alive(int64_t step, uint64_t interval) const {
  return static_cast<size_t>(std::count_if(groups_.begin(), groups_.end(), [&](const auto& each) {
    const Group& group = each.second;
    return !group.members.empty() &&
           group.window * static_cast<int64_t>(group.interval) >= step - 3 * static_cast<int64_t>(interval);
  }));
}

void WeightSeries::add_to_model(const Sums& sums, int64_t window) {
  const PoolSnapshot& one = sums.snapshot;
  std::erase_if(models_, [&](const auto& each) { return each.second.snapshot.interval != one.interval; });
  if (models_.size() > 2) models_.erase(models_.begin());
  Sums& model = models_[window];
  PoolSnapshot& pool = model.snapshot;
  pool.step = one.step;
  pool.interval = one.interval;
  pool.time = std::max(pool.time, one.time);
  pool.tensors += one.tensors;
  pool.elements += one.elements;
  pool.update_elements += one.update_elements;
  if (one.previous_max && *one.previous_max >= pool.previous_max.value_or(0))
    pool.moved_most = one.moved_most;
  pool.previous_max = larger(pool.previous_max, one.previous_max);
  pool.initial_max = larger(pool.initial_max, one.initial_max);
  pool.update_mean_abs_max = larger(pool.update_mean_abs_max, one.update_mean_abs_max);
  model.squares += sums.squares;
  model.updates += sums.updates;
  model.previous_known &= sums.previous_known;
  model.initial_known &= sums.initial_known;
  merge(sums.now, &model.now);
  if (model.previous_known) merge(sums.previous, &model.previous);
  if (model.initial_known) merge(sums.initial, &model.initial);
  if (++model.groups >= groups_alive(pool.step, pool.interval)) complete_model(window, &model);
}

void WeightSeries::complete_model(int64_t window, Sums* model) {
  PoolSnapshot& pool = model->snapshot;
  pool.previous = distance(model->previous_known, model->previous, model->now);
  pool.initial = distance(model->initial_known, model->initial, model->now);
  if (!model->previous_known) pool.previous_max = std::nullopt;
  if (!model->initial_known) pool.initial_max = std::nullopt;
  pool.histogram_hash = fnv1a(foreshock::store(model->now));
  close_pool(model->squares, model->updates, &pool);
  model_ = pool;
  completed_.push_back(pool);
  std::erase_if(layers_, [&](const auto& each) {
    return each.second.step < model_.step - 3 * static_cast<int64_t>(model_.interval);
  });
  models_.erase(models_.begin(), models_.upper_bound(window));
}

WeightSeries::Held WeightSeries::held() const {
  Held held;
  for (const auto& [key, tensor] : tensors_) {
    held.elements += tensor.last.elements;
    held.whole_elements += tensor.last.whole_elements;
  }
  return held;
}

std::vector<PoolSnapshot> WeightSeries::completed() { return std::exchange(completed_, {}); }

void WeightSeries::begin_anew() {
  tensors_.clear();
  groups_.clear();
  models_.clear();
  bytes_ = 0;
}

}  // namespace foreshock
