// Computes the Wasserstein distance (W1) of weight histograms between snapshots: for each tensor, and for the
// summed histograms of each layer and of the model. A window is an interval of steps in which each tensor has
// one snapshot; its number is step / interval. A group has the tensors of one layer (its members), which
// become known in the group's first window. A window of a group is complete when every member has a snapshot
// in it; until then it is in `building`. A window is closed when it has become complete or was dropped.
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

// Returns the larger known value; nothing if both are unknown.
std::optional<double> larger(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a || !b) return a ? a : b;
  return std::max(*a, *b);
}

// Sets the means of `pool`. `squares`: sum of the squared values; `updates`: sum of the magnitudes of the
// changes of `update_elements` values in one step.
void set_means(double squares, double updates, PoolSnapshot* pool) {
  const auto elements = static_cast<double>(pool->elements);
  if (elements == 0) return;
  pool->rms = std::sqrt(squares / elements);
  if (pool->update_elements > 0) pool->update_mean_abs = updates / static_cast<double>(pool->update_elements);
}

}  // namespace

// Returns nothing if `before` is not completely known (has_before), or if a histogram has no finite value.
std::optional<Wasserstein> WeightSeries::distance(bool has_before, const Histogram& before,
                                                  const Histogram& now) {
  if (!has_before || now.finite == 0 || before.finite == 0) return std::nullopt;
  return wasserstein(before, now);
}

// Compares a snapshot with the tensor's last and first ones, and keeps it as the last one. `is_first`: keeps
// it as the first one too, if the tensor is new.
void WeightSeries::add(bool is_first, TensorSnapshot* snapshot) {
  snapshot->stored = foreshock::store(snapshot->histogram);
  begin_window(*snapshot);
  const auto [found, is_new] = groups_.try_emplace(snapshot->layer);
  if (is_new) new_groups_.insert(snapshot->layer);
  Group& group = found->second;
  const bool is_window_open = open_window(*snapshot, &group);
  Tensor& tensor = tensors_[snapshot->key];
  if (!tensor.kept.empty() && tensor.layer != snapshot->layer) leave_group(tensor.layer, snapshot->key);
  compare(tensor, snapshot);  // before keep(), which replaces the tensor's last snapshot
  const bool same_interval =
      !tensor.kept.empty() && tensor.kept.rbegin()->second.snapshot.interval == snapshot->interval;
  // If the interval changed, the tensor's earlier snapshots no longer count in incomplete windows.
  if (!same_interval)
    for (auto& [window, seen] : group.building) seen.erase(snapshot->key);
  const bool is_kept = keep(is_first, same_interval, *snapshot, group, &tensor);
  if (!is_window_open || !is_kept) return;
  group.members.insert(snapshot->key);
  group.building[window_of(*snapshot)].insert(snapshot->key);
  complete_windows(snapshot->layer, &group);
}

// If the snapshot's window is newer than all before, counts it, and removes tensors without a snapshot in the
// last kMaxMissedWindows windows: the trainer now divides the model into other tensors.
void WeightSeries::begin_window(const TensorSnapshot& snapshot) {
  const int64_t begin = window_of(snapshot) * static_cast<int64_t>(snapshot.interval);
  if (begin <= newest_window_begin_) return;
  newest_window_begin_ = begin;
  ++window_count_;
  for (auto entry = tensors_.begin(); entry != tensors_.end();) {
    Tensor& tensor = entry->second;
    if (tensor.seen_at_window + kMaxMissedWindows >= window_count_) {
      ++entry;
      continue;
    }
    leave_group(tensor.layer, entry->first);
    forget_kept(&tensor, /*building=*/{}, /*except=*/-1);
    forget(&tensor.initial);
    entry = tensors_.erase(entry);
  }
}

// Removes a tensor from a layer's group, because the tensor does not exist any more or has another layer now.
void WeightSeries::leave_group(const std::string& layer, const TensorKey& key) {
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

// Sets the distances of `snapshot` to the tensor's last and first snapshots.
void WeightSeries::compare(const Tensor& tensor, TensorSnapshot* snapshot) const {
  const auto distance_from = [&](const std::string& stored) {
    Histogram before;
    return distance(restore(stored, &before), before, snapshot->histogram);
  };
  // Compares with the snapshot one interval earlier, if it covers equally many elements.
  const KeptSnapshot* last = tensor.kept.empty() ? nullptr : &tensor.kept.rbegin()->second;
  const auto interval = static_cast<int64_t>(snapshot->interval);
  if (last != nullptr && !last->stored.empty() && last->snapshot.elements == snapshot->elements &&
      last->snapshot.interval == snapshot->interval && last->snapshot.step == snapshot->step - interval) {
    snapshot->previous_step = last->snapshot.step;
    snapshot->previous = distance_from(last->stored);
  }
  if (tensor.initial_step >= 0 && tensor.initial_elements == snapshot->elements) {
    snapshot->initial_step = tensor.initial_step;
    snapshot->initial = distance_from(tensor.initial);
  }
}

// Stores `snapshot` as the tensor's latest. Returns false if its histogram exceeds the memory limit.
// `same_interval`: the tensor's last snapshot had this interval, so its snapshots in incomplete windows stay.
bool WeightSeries::keep(bool is_first, bool same_interval, const TensorSnapshot& snapshot, const Group& group,
                        Tensor* tensor) {
  const bool is_new = tensor->kept.empty();
  forget_kept(tensor, same_interval ? group.building : std::map<int64_t, TensorKeys>{}, /*except=*/-1);
  tensor->layer = snapshot.layer;
  tensor->seen_at_window = window_count_;
  KeptSnapshot& kept = tensor->kept[window_of(snapshot)];
  const bool is_kept = store_bytes(snapshot.stored, most_bytes_, &kept.stored);
  kept.snapshot = snapshot;
  kept.snapshot.histogram = {};  // kept.stored has the histogram, serialized
  kept.snapshot.stored = {};
  // A first snapshot of another size cannot be compared.
  if (tensor->initial_step >= 0 && tensor->initial_elements != snapshot.elements) {
    forget(&tensor->initial);
    tensor->initial_step = -1;
  }
  if (is_new && is_first && tensor->initial_step < 0) keep_initial(snapshot, tensor);
  return is_kept;
}

// Keeps the first snapshot of a tensor if all kept histograms together then take at most half of the limit.
void WeightSeries::keep_initial(const TensorSnapshot& snapshot, Tensor* tensor) {
  if (!store_bytes(snapshot.stored, most_bytes_ / 2, &tensor->initial)) return;
  tensor->initial_step = snapshot.step;
  tensor->initial_elements = snapshot.elements;
}

// Drops the tensor's snapshots, except those of the windows in `building` and of window `except` (-1: none).
void WeightSeries::forget_kept(Tensor* tensor, const std::map<int64_t, TensorKeys>& building,
                               int64_t except) {
  std::erase_if(tensor->kept, [&](const auto& each) {
    if (each.first == except || building.contains(each.first)) return false;
    bytes_ -= each.second.stored.size();
    return true;
  });
}

void WeightSeries::forget(std::string* stored) {
  bytes_ -= stored->size();
  *stored = {};
}

// Replaces *to by `bytes`. Returns false and keeps *to if all kept histograms would exceed `limit` bytes.
bool WeightSeries::store_bytes(const std::string& bytes, uint64_t limit, std::string* to) {
  if (bytes_ + bytes.size() > limit) {
    ++dropped_;
    return false;
  }
  forget(to);
  *to = bytes;
  bytes_ += bytes.size();
  return true;
}

// Opens the window of a snapshot in its group. Returns false if the window is already closed. Snapshots may
// be late, because ranks are at different steps and are read one by one.
bool WeightSeries::open_window(const TensorSnapshot& snapshot, Group* group) {
  const int64_t window = window_of(snapshot);
  if (snapshot.interval != group->interval) {
    // Numbers of windows with another interval cannot be compared, so the group starts again. A late snapshot
    // from before the change of the interval is left out.
    if (snapshot.step < group->newest * static_cast<int64_t>(group->interval)) return false;
    group->building.clear();
    group->previous_window = group->newest = -1;
    group->interval = snapshot.interval;
  }
  if (group->newest < 0) group->closed = window - 1;  // the group's first window of this interval
  if (window <= group->closed) return false;
  group->newest = std::max(group->newest, window);
  group->seen_at_window = window_count_;
  group->building.try_emplace(window);
  while (group->building.size() > kMostBuilding) {  // both calls remove the oldest incomplete window
    if (group->in_first_window)
      end_first_window(group);
    else
      close(group->building.begin()->first, group);
  }
  return window > group->closed;  // the loop may have closed this window
}

// The caller promises that no snapshot before `step` follows. Ends each first window that is before `step`,
// and removes its group from new_groups_ (the lambda returns true).
void WeightSeries::expect_none_before(int64_t step) {
  std::erase_if(new_groups_, [&](const std::string& layer) {
    const auto found = groups_.find(layer);
    if (found == groups_.end() || !found->second.in_first_window) return true;
    Group& group = found->second;
    // The first window stays open until the group has a snapshot in a second one, which is compared with it.
    if (group.building.size() < 2) return false;
    if (step / static_cast<int64_t>(group.interval) <= group.building.begin()->first) return false;
    end_first_window(&group);
    complete_windows(layer, &group);
    return true;
  });
}

// Ends the group's first window, in which its members became known. Keeps its sum for the next comparison.
void WeightSeries::end_first_window(Group* group) {
  const auto& [window, seen] = *group->building.begin();
  uint64_t elements = 0;
  const Histogram before = pooled(seen, window, &elements);
  store_previous(group, window, foreshock::store(before), elements);
  group->in_first_window = false;
  close(window, group);
}

// Closes this window and the incomplete ones before it. Keeps each member's latest snapshot and those of
// later incomplete windows.
void WeightSeries::close(int64_t window, Group* group) {
  group->closed = window;
  group->building.erase(group->building.begin(), group->building.upper_bound(window));
  for (const TensorKey& key : group->members) {
    Tensor& tensor = tensors_.at(key);
    forget_kept(&tensor, group->building, tensor.kept.rbegin()->first);
  }
}

// Completes the windows in which all members have a snapshot. Does nothing before the group's first window
// has ended, because not all members are known until then. Searches again after each window, because
// complete() erases windows.
void WeightSeries::complete_windows(const std::string& layer, Group* group) {
  if (group->in_first_window || group->members.empty()) return;
  const auto is_whole = [group](const auto& each) { return each.second.size() == group->members.size(); };
  for (auto found = std::ranges::find_if(group->building, is_whole); found != group->building.end();
       found = std::ranges::find_if(group->building, is_whole))
    complete(layer, found->first, group);
}

WeightSeries::Held WeightSeries::held() const {
  Held held;
  for (const auto& [key, tensor] : tensors_) {
    if (tensor.kept.empty()) continue;
    const TensorSnapshot& last = tensor.kept.rbegin()->second.snapshot;
    held.elements += last.elements;
    held.whole_elements += last.whole_elements;
  }
  return held;
}

std::vector<PoolSnapshot> WeightSeries::completed() { return std::exchange(completed_, {}); }

// Drops everything, except the tensors' first snapshots if `keeps_initial`.
void WeightSeries::restart(bool keeps_initial) {
  groups_.clear();
  new_groups_.clear();
  models_.clear();
  layers_.clear();
  model_ = {};
  bytes_ = 0;
  newest_window_begin_ = -1;
  std::erase_if(tensors_, [&](const auto& each) { return !keeps_initial || each.second.initial_step < 0; });
  for (auto& [key, tensor] : tensors_) {
    tensor.kept.clear();
    tensor.seen_at_window = window_count_;
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

// Returns the sum of the members' kept histograms in this window. Sets *elements to its number of values.
// Members whose histogram was not kept are missing in both.
Histogram WeightSeries::pooled(const TensorKeys& members, int64_t window, uint64_t* elements) const {
  Histogram sum;
  *elements = 0;
  for (const TensorKey& key : members) {
    const KeptSnapshot& kept = tensors_.at(key).kept.at(window);
    Histogram histogram;
    if (!restore(kept.stored, &histogram)) continue;
    merge(histogram, &sum);
    *elements += kept.snapshot.elements;
  }
  return sum;
}

// Returns the sum of the members' kept first snapshots. Sets *elements to its number of values.
Histogram WeightSeries::initial_of(const TensorKeys& members, uint64_t* elements) const {
  Histogram sum;
  *elements = 0;
  for (const TensorKey& key : members) {
    const Tensor& tensor = tensors_.at(key);
    Histogram histogram;
    if (!restore(tensor.initial, &histogram)) continue;
    merge(histogram, &sum);
    *elements += tensor.initial_elements;
  }
  return sum;
}

// Sums up the snapshots of a complete window. Leaves Sums::previous and Sums::initial to complete().
WeightSeries::Sums WeightSeries::sums_of(const std::string& layer, const Group& group, int64_t window) const {
  Sums sums;
  PoolSnapshot& pool = sums.snapshot;
  pool.layer = layer;
  pool.interval = group.interval;
  pool.step = window * static_cast<int64_t>(group.interval);
  pool.tensors = group.members.size();
  sums.now = pooled(group.members, window, &pool.elements);
  for (const TensorKey& key : group.members) {
    const TensorSnapshot& snapshot = tensors_.at(key).kept.at(window).snapshot;
    pool.time = std::max(pool.time, snapshot.time);
    if (snapshot.previous && snapshot.previous->value >= pool.previous_max.value_or(0))
      pool.moved_most = key.name;
    pool.previous_max = larger(pool.previous_max, value_of(snapshot.previous));
    pool.initial_max = larger(pool.initial_max, value_of(snapshot.initial));
    sums.previous_known &= snapshot.previous.has_value();
    sums.initial_known &= snapshot.initial.has_value();
    sums.squares += snapshot.sum_of_squares;
    const std::optional<double> mean = snapshot.update_mean_abs();
    if (!mean) continue;
    sums.updates += *snapshot.update_sum_magnitude;
    pool.update_elements += snapshot.update_elements;
    pool.update_mean_abs_max = larger(pool.update_mean_abs_max, mean);
  }
  return sums;
}

// Stores the sum of the members' first snapshots if it has `elements` values, as many as a complete window.
void WeightSeries::set_initial(Group* group, uint64_t elements) {
  if (group->initial_elements == elements) return;  // stored already
  forget(&group->initial);
  group->initial_elements = 0;
  uint64_t summed_elements = 0;
  const Histogram first = initial_of(group->members, &summed_elements);
  if (summed_elements == elements && store_bytes(foreshock::store(first), most_bytes_, &group->initial))
    group->initial_elements = elements;
}

void WeightSeries::store_previous(Group* group, int64_t window, const std::string& stored,
                                  uint64_t elements) {
  forget(&group->previous);
  group->previous_window = store_bytes(stored, most_bytes_, &group->previous) ? window : -1;
  group->previous_elements = elements;
}

// Compares a group's complete window with the one before it and the first snapshots. Adds it to the model.
void WeightSeries::complete(const std::string& layer, int64_t window, Group* group) {
  Sums sums = sums_of(layer, *group, window);
  close(window, group);  // after sums_of(), which needs the snapshots of this window
  PoolSnapshot& pool = sums.snapshot;
  set_initial(group, pool.elements);
  // restore() also sets sums.previous and sums.initial.
  sums.previous_known &= group->previous_window == window - 1 && group->previous_elements == pool.elements &&
                         restore(group->previous, &sums.previous);
  sums.initial_known &= group->initial_elements == pool.elements && restore(group->initial, &sums.initial);
  pool.previous = distance(sums.previous_known, sums.previous, sums.now);
  pool.initial = distance(sums.initial_known, sums.initial, sums.now);
  const std::string stored = foreshock::store(sums.now);
  pool.histogram_hash = fnv1a(stored);
  set_means(sums.squares, sums.updates, &pool);
  store_previous(group, window, stored, pool.elements);
  if (!layer.empty()) {  // "": tensors without a layer, which count only for the model
    layers_[layer] = pool;
    completed_.push_back(pool);
  }
  add_to_model(sums, window);
}

// Returns the number of groups in the model. A group without recent snapshots is no longer part of it.
size_t WeightSeries::groups_alive() const {
  return static_cast<size_t>(std::ranges::count_if(groups_, [this](const auto& each) {
    return !each.second.members.empty() && each.second.seen_at_window + kMaxMissedWindows >= window_count_;
  }));
}

// Adds a group's window to the same window of the model, which is complete when it has all groups.
void WeightSeries::add_to_model(const Sums& sums, int64_t window) {
  const PoolSnapshot& layer = sums.snapshot;
  std::erase_if(models_, [&](const auto& each) { return each.second.snapshot.interval != layer.interval; });
  models_.try_emplace(window);
  if (models_.size() > kMostBuilding) models_.erase(models_.begin());
  if (layer.step <= model_.step || !models_.contains(window)) return;  // the window came too late
  Sums& model = models_[window];
  PoolSnapshot& pool = model.snapshot;
  pool.step = layer.step;
  pool.interval = layer.interval;
  pool.time = std::max(pool.time, layer.time);
  pool.tensors += layer.tensors;
  pool.elements += layer.elements;
  pool.update_elements += layer.update_elements;
  if (layer.previous_max && *layer.previous_max >= pool.previous_max.value_or(0))
    pool.moved_most = layer.moved_most;
  pool.previous_max = larger(pool.previous_max, layer.previous_max);
  pool.initial_max = larger(pool.initial_max, layer.initial_max);
  pool.update_mean_abs_max = larger(pool.update_mean_abs_max, layer.update_mean_abs_max);
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
  if (!model->previous_known) pool.previous_max = std::nullopt;  // the distance of some tensor is missing
  if (!model->initial_known) pool.initial_max = std::nullopt;
  pool.histogram_hash = fnv1a(foreshock::store(model->now));
  set_means(model->squares, model->updates, &pool);
  model_ = pool;
  completed_.push_back(pool);
  // Layers without a complete window in the last three intervals do not exist any more.
  std::erase_if(layers_, [&](const auto& each) {
    return each.second.step < model_.step - 3 * static_cast<int64_t>(model_.interval);
  });
  models_.erase(models_.begin(), models_.upper_bound(window));
}

}  // namespace foreshock
