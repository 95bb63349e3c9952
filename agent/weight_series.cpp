#include "agent/weight_series.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "segment/layout.h"
#include "shadow/histogram.h"

namespace foreshock {
namespace {

int64_t window_of(const TensorSnapshot& snapshot) {
  return snapshot.step / static_cast<int64_t>(snapshot.interval);
}

}  // namespace

std::optional<Wasserstein> WeightSeries::distance(bool is_known, const Histogram& before,
                                                  const Histogram& now) {
  if (!is_known || now.finite == 0 || before.finite == 0) return std::nullopt;
  return wasserstein(before, now);
}

void WeightSeries::take(bool is_first, TensorSnapshot* snapshot) {
  snapshot->stored = foreshock::store(snapshot->histogram);
  begin_turn(*snapshot);
  const auto [found, is_new] = groups_.try_emplace(snapshot->layer);
  if (is_new) new_groups_.insert(snapshot->layer);
  Group& group = found->second;
  const bool is_in_order = enter(*snapshot, &group);
  Tensor& tensor = tensors_[snapshot->key];
  if (!tensor.shown.empty() && tensor.layer != snapshot->layer) leave(tensor.layer, snapshot->key);
  compare(tensor, snapshot);
  const bool goes_on =
      !tensor.shown.empty() && tensor.shown.rbegin()->second.snapshot.interval == snapshot->interval;
  if (!goes_on)  // whatever of it is waited with goes
    for (auto& [window, seen] : group.building) seen.erase(snapshot->key);
  const bool is_kept = keep(is_first, goes_on, *snapshot, group, &tensor);
  if (!is_in_order || !is_kept) return;
  group.members.insert(snapshot->key);
  group.building[window_of(*snapshot)].insert(snapshot->key);
  complete_what_is_seen(snapshot->layer, &group);
}

// What nobody has shown for so long is not there any more: the model was taken apart differently.
void WeightSeries::begin_turn(const TensorSnapshot& snapshot) {
  const int64_t begin = window_of(snapshot) * static_cast<int64_t>(snapshot.interval);
  if (begin <= turn_begin_) return;
  turn_begin_ = begin;
  ++turns_;
  for (auto at = tensors_.begin(); at != tensors_.end();) {
    Tensor& tensor = at->second;
    if (tensor.turn + kTurns >= turns_) {
      ++at;
      continue;
    }
    leave(tensor.layer, at->first);
    forget_shown(&tensor, {}, -1);
    forget(&tensor.initial);
    at = tensors_.erase(at);
  }
}

// A tensor is a member of one group: that of the layer which it was last said to belong to.
void WeightSeries::leave(const std::string& layer, const TensorKey& key) {
  const auto found = groups_.find(layer);
  if (found == groups_.end()) return;
  Group& group = found->second;
  group.members.erase(key);
  for (auto& [window, seen] : group.building) seen.erase(key);
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
  const Shown* last = tensor.shown.empty() ? nullptr : &tensor.shown.rbegin()->second;
  const auto interval = static_cast<int64_t>(snapshot->interval);
  if (last != nullptr && !last->stored.empty() && last->snapshot.elements == snapshot->elements &&
      last->snapshot.interval == snapshot->interval && last->snapshot.step == snapshot->step - interval) {
    snapshot->previous_step = last->snapshot.step;
    snapshot->previous = to(last->stored);
  }
  if (tensor.initial_step >= 0 && tensor.initial_elements == snapshot->elements) {
    snapshot->initial_step = tensor.initial_step;
    snapshot->initial = to(tensor.initial);
  }
}

// Whether there was room for it.
bool WeightSeries::keep(bool is_first, bool goes_on, const TensorSnapshot& snapshot, const Group& group,
                        Tensor* tensor) {
  const bool is_new = tensor->shown.empty();
  forget_shown(tensor, goes_on ? group.building : std::map<int64_t, Seen>{}, -1);
  tensor->layer = snapshot.layer;
  tensor->turn = turns_;
  Shown& shown = tensor->shown[window_of(snapshot)];
  const bool is_kept = store(snapshot.stored, most_bytes_, &shown.stored);
  shown.snapshot = snapshot;
  shown.snapshot.histogram = {};
  shown.snapshot.stored = {};
  if (tensor->initial_step >= 0 && tensor->initial_elements != snapshot.elements) {
    forget(&tensor->initial);
    tensor->initial_step = -1;
  }
  if (is_new && is_first && tensor->initial_step < 0) keep_initial(snapshot, tensor);
  return is_kept;
}

void WeightSeries::keep_initial(const TensorSnapshot& snapshot, Tensor* tensor) {
  if (!store(snapshot.stored, most_bytes_ / 2, &tensor->initial)) return;
  tensor->initial_step = snapshot.step;
  tensor->initial_elements = snapshot.elements;
}

// Snapshots that no window of `building` waits with, but for that of one window.
void WeightSeries::forget_shown(Tensor* tensor, const std::map<int64_t, Seen>& building, int64_t but) {
  std::erase_if(tensor->shown, [&](const auto& each) {
    if (each.first == but || building.contains(each.first)) return false;
    bytes_ -= each.second.stored.size();
    return true;
  });
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

// False when the group has gone on: its tensors come from ranks that run apart and are read one by one.
bool WeightSeries::enter(const TensorSnapshot& snapshot, Group* group) {
  const int64_t window = window_of(snapshot);
  if (snapshot.interval != group->interval) {
    if (snapshot.step < group->begun * static_cast<int64_t>(group->interval)) return false;
    group->building.clear();
    group->previous_window = group->begun = -1;
    group->interval = snapshot.interval;
  }
  if (group->begun < 0) group->closed = window - 1;
  if (window <= group->closed) return false;
  group->begun = std::max(group->begun, window);
  group->turn = turns_;
  group->building.try_emplace(window);
  while (group->building.size() > kMostBuilding)
    group->is_first ? end_first(group) : close(group->building.begin()->first, group);
  return window > group->closed;
}

void WeightSeries::pass(int64_t step) {
  std::erase_if(new_groups_, [&](const std::string& layer) {
    const auto found = groups_.find(layer);
    if (found == groups_.end() || !found->second.is_first) return true;
    Group& group = found->second;
    if (group.building.size() < 2) return false;
    if (step / static_cast<int64_t>(group.interval) <= group.building.begin()->first) return false;
    end_first(&group);
    complete_what_is_seen(layer, &group);
    return true;
  });
}

// The window in which the members have become known.
void WeightSeries::end_first(Group* group) {
  const auto& [window, seen] = *group->building.begin();
  uint64_t elements = 0;
  const Histogram before = pooled(seen, window, &elements);
  store_previous(group, window, foreshock::store(before), elements);
  group->is_first = false;
  close(window, group);
}

// This window, and those before it that lack a tensor, wait no more.
void WeightSeries::close(int64_t window, Group* group) {
  group->closed = window;
  group->building.erase(group->building.begin(), group->building.upper_bound(window));
  for (const TensorKey& key : group->members) {
    Tensor& tensor = tensors_.at(key);
    forget_shown(&tensor, group->building, tensor.shown.rbegin()->first);
  }
}

void WeightSeries::complete_what_is_seen(const std::string& layer, Group* group) {
  if (group->is_first || group->members.empty()) return;
  const auto is_whole = [group](const auto& each) { return each.second.size() == group->members.size(); };
  for (auto found = std::ranges::find_if(group->building, is_whole); found != group->building.end();
       found = std::ranges::find_if(group->building, is_whole))
    complete(layer, found->first, group);
}

WeightSeries::Held WeightSeries::held() const {
  Held held;
  for (const auto& [key, tensor] : tensors_) {
    if (tensor.shown.empty()) continue;
    const TensorSnapshot& last = tensor.shown.rbegin()->second.snapshot;
    held.elements += last.elements;
    held.whole_elements += last.whole_elements;
  }
  return held;
}

std::vector<PoolSnapshot> WeightSeries::completed() { return std::exchange(completed_, {}); }

void WeightSeries::begin_anew(bool keeps_initial) {
  groups_.clear();
  new_groups_.clear();
  models_.clear();
  layers_.clear();
  model_ = {};
  bytes_ = 0;
  turn_begin_ = -1;
  std::erase_if(tensors_, [&](const auto& each) { return !keeps_initial || each.second.initial_step < 0; });
  for (auto& [key, tensor] : tensors_) {
    tensor.shown.clear();
    tensor.turn = turns_;
    bytes_ += tensor.initial.size();
  }
}

int64_t WeightSeries::initial_step(const TensorKey& key) const {
  const auto found = tensors_.find(key);
  return found == tensors_.end() ? -1 : found->second.initial_step;
}

void WeightSeries::forget_initial(const TensorKey& key) {
  const auto found = tensors_.find(key);
  if (found == tensors_.end()) return;
  forget(&found->second.initial);
  found->second.initial_step = -1;
  const auto group = groups_.find(found->second.layer);
  if (group == groups_.end()) return;
  forget(&group->second.initial);
  group->second.initial_elements = 0;
}

// Layers and the model, out of the tensors of a window.

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

// The sum of the histograms of all members that have one in this window; *elements is their number of values.
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
