// Layers and the model, out of the tensors of a window.
#include <algorithm>
#include <cmath>

#include "agent/fnv.h"
#include "agent/weight_series.h"
#include "shadow/stored_histogram.h"

namespace foreshock {
namespace {

std::optional<double> larger(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a || !b) return a ? a : b;
  return std::max(*a, *b);
}

void close_pool(double squares, double updates, PoolSnapshot* pool) {
  const auto elements = static_cast<double>(pool->elements);
  if (elements == 0) return;
  pool->rms = std::sqrt(squares / elements);
  if (pool->update_elements > 0) pool->update_mean_abs = updates / static_cast<double>(pool->update_elements);
}

}  // namespace

// Of all members that were shown in this window; `elements` of these.
Histogram WeightSeries::pooled(const Seen& members, int64_t window, uint64_t* elements) const {
  Histogram sum;
  *elements = 0;
  for (const TensorKey& key : members) {
    const Shown& shown = tensors_.at(key).shown.at(window);
    Histogram one;
    if (!restore(shown.stored, &one)) continue;
    merge(one, &sum);
    *elements += shown.snapshot.elements;
  }
  return sum;
}

Histogram WeightSeries::first_of(const Seen& members, uint64_t* elements) const {
  Histogram sum;
  *elements = 0;
  for (const TensorKey& key : members) {
    const Tensor& tensor = tensors_.at(key);
    Histogram one;
    if (!restore(tensor.initial, &one)) continue;
    merge(one, &sum);
    *elements += tensor.initial_elements;
  }
  return sum;
}

WeightSeries::Sums WeightSeries::sums_of(const std::string& layer, const Group& group, int64_t window) const {
  Sums sums;
  PoolSnapshot& pool = sums.snapshot;
  pool.layer = layer;
  pool.interval = group.interval;
  pool.step = window * static_cast<int64_t>(group.interval);
  pool.tensors = group.members.size();
  sums.now = pooled(group.members, window, &pool.elements);
  for (const TensorKey& key : group.members) {
    const TensorSnapshot& last = tensors_.at(key).shown.at(window).snapshot;
    pool.time = std::max(pool.time, last.time);
    if (last.previous && last.previous->value >= pool.previous_max.value_or(0)) pool.moved_most = key.name;
    pool.previous_max = larger(pool.previous_max, value_of(last.previous));
    pool.initial_max = larger(pool.initial_max, value_of(last.initial));
    sums.previous_known &= last.previous.has_value();
    sums.initial_known &= last.initial.has_value();
    sums.squares += last.sum_of_squares;
    const std::optional<double> mean = last.update_mean_abs();
    if (!mean) continue;
    sums.updates += *last.update_sum_magnitude;
    pool.update_elements += last.update_elements;
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
  const Histogram first = first_of(group->members, &with_first);
  if (with_first == elements && store(foreshock::store(first), most_bytes_, &group->initial))
    group->initial_elements = elements;
}

void WeightSeries::store_previous(Group* group, int64_t window, const std::string& stored,
                                  uint64_t elements) {
  forget(&group->previous);
  group->previous_window = store(stored, most_bytes_, &group->previous) ? window : -1;
  group->previous_elements = elements;
}

void WeightSeries::complete(const std::string& layer, int64_t window, Group* group) {
  Sums sums = sums_of(layer, *group, window);
  close(window, group);
  PoolSnapshot& pool = sums.snapshot;
  set_first(group, pool.elements);
  sums.previous_known &= group->previous_window == window - 1 && group->previous_elements == pool.elements &&
                         restore(group->previous, &sums.previous);
  sums.initial_known &= group->initial_elements == pool.elements && restore(group->initial, &sums.initial);
  pool.previous = distance(sums.previous_known, sums.previous, sums.now);
  pool.initial = distance(sums.initial_known, sums.initial, sums.now);
  const std::string stored = foreshock::store(sums.now);
  pool.histogram_hash = fnv1a(stored);
  close_pool(sums.squares, sums.updates, &pool);
  store_previous(group, window, stored, pool.elements);
  if (!layer.empty()) {
    layers_[layer] = pool;
    completed_.push_back(pool);
  }
  add_to_model(sums, window);
}

// Groups that a model has: what is not there any more takes no part.
size_t WeightSeries::groups_alive() const {
  return static_cast<size_t>(std::ranges::count_if(groups_, [this](const auto& each) {
    return !each.second.members.empty() && each.second.turn + kTurns >= turns_;
  }));
}

void WeightSeries::add_to_model(const Sums& sums, int64_t window) {
  const PoolSnapshot& one = sums.snapshot;
  std::erase_if(models_, [&](const auto& each) { return each.second.snapshot.interval != one.interval; });
  models_.try_emplace(window);
  if (models_.size() > kMostBuilding) models_.erase(models_.begin());
  if (one.step <= model_.step || !models_.contains(window)) return;
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
  if (++model.groups >= groups_alive()) complete_model(window, &model);
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

}  // namespace foreshock
