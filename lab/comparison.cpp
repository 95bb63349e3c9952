// Plans and carries out comparisons of the weights in checkpoints. A task compares one tensor: its sides are
// the tensor in each checkpoint, its parts the compared pairs of sides. A unit is a range of the tensor's
// elements; threads read and compare one unit at a time. W1 is the Wasserstein distance of two histograms.
#include "lab/comparison.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <new>
#include <set>
#include <utility>

#include "kernels/histogram.h"
#include "lab/measure.h"

namespace foreshock::lab {
namespace {

// Allocates `words` zeroed counters if *pointer is null. With calloc, pages without counts use no memory.
template <class Pointer>
void allocate_if_null(size_t words, Pointer* pointer) {
  using Word = typename Pointer::element_type;
  if (!*pointer) pointer->reset(static_cast<Word*>(std::calloc(words, sizeof(Word))));
  if (!*pointer) throw std::bad_alloc();
}

}  // namespace

// Counts 16-bit values by bit pattern, others by the bins of a histogram of fp32; fp64 is rounded to fp32.
void TensorCounter::count(const char* data, DType type, size_t count) {
  if (type == DType::kBf16 || type == DType::kFp16) {
    allocate_if_null(kPatternWords, &patterns_);
    count_patterns(data, count, patterns_.get());
    return;
  }
  allocate_if_null(kBinWords, &bins_);
  if (type == DType::kFp32) return count_bins(data, count, bins_.get());
  count_narrowed(data, count);
}

void TensorCounter::count_narrowed(const char* data, size_t count) {
  constexpr size_t kFewElements = 1024;  // few, since they are on the stack
  float narrow[kFewElements];
  for (size_t first = 0; first < count; first += kFewElements) {
    const size_t n = std::min(kFewElements, count - first);
    for (size_t i = 0; i < n; ++i) {
      const double x = load_as_double(data, DType::kFp64, first + i);
      narrow[i] = static_cast<float>(x);
      if (std::isfinite(x)) rounding_ += std::fabs(x - static_cast<double>(narrow[i]));
    }
    count_bins(narrow, n, bins_.get());
  }
}

Histogram TensorCounter::take(DType type) {
  Histogram histogram;
  const bool has_patterns = type == DType::kBf16 || type == DType::kFp16;
  if (has_patterns && patterns_) take_patterns(patterns_.get(), type, &histogram);
  if (!has_patterns && bins_) take_bins(bins_.get(), &histogram);
  return histogram;
}

double TensorCounter::take_rounding() { return std::exchange(rounding_, 0); }

// Counts the finite values whose partner, the value at the same index of the other side, is not finite.
void UnpairedCounter::count(const char* data, DType type, const char* partners, DType partner_type,
                            size_t count) {
  unpaired_.clear();
  for (size_t i = 0; i < count; ++i) {
    if (std::isfinite(load_as_double(partners, partner_type, i)) ||
        !std::isfinite(load_as_double(data, type, i)))
      continue;
    const char* value = data + i * size_of(type);
    unpaired_.insert(unpaired_.end(), value, value + size_of(type));
  }
  if (unpaired_.empty()) return;
  counter_.count(unpaired_.data(), type, unpaired_.size() / size_of(type));
  has_any_ = true;
}

Histogram UnpairedCounter::take(DType type) {
  return std::exchange(has_any_, false) ? counter_.take(type) : Histogram();
}

Histogram without(const Histogram& part, const Histogram& all) {
  Histogram rest = all;
  rest.finite -= part.finite;
  rest.minus_zero -= part.minus_zero;
  auto bin = rest.bins.begin();
  for (const HistogramBin& part_bin : part.bins) {  // `rest` has each bin of `part`; both are sorted by index
    while (bin->index < part_bin.index) ++bin;
    bin->count -= part_bin.count;
    bin->residual -= part_bin.residual;
  }
  std::erase_if(rest.bins, [](const HistogramBin& b) { return b.count == 0; });
  return rest;
}

namespace {

// Number of elements of a unit and of a block. A unit must stay below the limit of TensorCounter::count(),
// 2^26 - 1. A block is read at once and stays in the cache until it is counted and compared. The sums of
// units are added in the order of units, so that the result does not depend on the number of threads.
constexpr uint64_t kUnit = uint64_t{1} << 24, kBlock = uint64_t{1} << 17;

// The distribution of the values of a tensor, or of all tensors pooled, in one checkpoint.
struct Distribution {
  Histogram histogram;
  double rounding = 0;  // sum of |x - x rounded to fp32|; after without() an upper bound of this sum

  Distribution without(const Histogram& unpaired) const {
    return {lab::without(unpaired, histogram), rounding};
  }
  double mean_rounding() const {  // 0 also if there is no finite value
    return rounding == 0 ? 0 : rounding / static_cast<double>(histogram.finite);
  }
};

// The results of one part of a task: for a block, a unit, or the whole task.
struct PartSums {
  Difference difference;
  bool has_same_bits = true;  // false also if the formats differ

  void add(const PartSums& other) {
    difference.add(other.difference);
    has_same_bits = has_same_bits && other.has_same_bits;
  }
};

struct TaskState {  // sums over the finished units of a task
  std::mutex mutex;
  std::vector<Histogram> histograms;           // [side]
  std::vector<std::vector<double>> roundings;  // [unit][side]
  std::vector<std::vector<PartSums>> sums;     // [unit][part]
  std::vector<Histogram> unpaired;  // [2 * part]: values of the part's side_a; [2 * part + 1]: of its side_b
  uint64_t units_left = 0;
};

struct Unit {
  size_t task = 0;
  uint64_t index = 0;  // of the unit within the task
};

uint64_t units_of(const ComparisonTask& task) {
  return std::max<uint64_t>(1, (task.elements + kUnit - 1) / kUnit);  // 1: an empty task must end too
}

uint64_t bytes_of(const ComparisonTask& task) {
  uint64_t bytes = 0;
  for (const ComparisonTask::Side& side : task.sides) bytes += side.place.tensor->bytes;
  return bytes;
}

// The types of the two sides that a part of the task compares.
std::pair<DType, DType> types_of(const ComparisonTask& task, size_t part) {
  const auto type = [&](size_t side) { return task.sides[side].place.tensor->dtype; };
  return {type(task.parts[part].side_a), type(task.parts[part].side_b)};
}

Distance distance_of(const Distribution& a, const Distribution& b, const Difference& difference) {
  Distance distance;
  distance.wasserstein = wasserstein(a.histogram, b.histogram);
  // Rounding changes the values by `rounding` on average, and so W1 by at most `rounding`. W1 lies between
  // low and high. Both are NaN if unknown, and stay NaN: std::max(NaN, 0.0) is NaN.
  const double rounding = a.mean_rounding() + b.mean_rounding();
  distance.wasserstein.low = std::max(distance.wasserstein.low - rounding, 0.0);
  distance.wasserstein.high += rounding;
  distance.noise_floor = sampling_noise_floor(a.histogram, b.histogram);
  distance.magnitude = mean_magnitude(a.histogram);
  distance.difference = difference;
  distance.elements = difference.pairs + difference.non_finite;  // `pairs` counts only finite pairs
  distance.non_finite_a = a.histogram.non_finite();
  distance.non_finite_b = b.histogram.non_finite();
  return distance;
}

// Carries out the tasks in several threads, and writes the distances into the results.
class Comparer {
 public:
  Comparer(const std::vector<ComparisonTask>& tasks, const std::function<void(double)>& progress,
           std::vector<PairResult>* results)
      : tasks_(tasks),
        progress_(progress),
        results_(*results),
        states_(tasks.size()),
        pools_(results->size()) {
    for (size_t t = 0; t < tasks.size(); ++t) {
      bytes_ += bytes_of(tasks[t]);
      states_[t].units_left = units_of(tasks[t]);
      for (uint64_t u = 0; u < units_of(tasks[t]); ++u) units_.push_back({t, u});
    }
  }

  std::string run(int threads) {
    parallel_for(static_cast<size_t>(threads), threads, [this](size_t) { work(); });  // one call per thread
    if (problem_.empty()) compute_pooled_distances();
    return problem_;
  }

  uint64_t bytes() const { return bytes_; }

 private:
  struct Pool {  // the distributions of all tensors of one pair of checkpoints
    std::mutex mutex;
    Histogram a, b;
  };

  // Buffers that a thread reuses for all its units.
  struct Scratch {
    std::vector<TensorCounter> counters;     // [side]
    std::vector<std::vector<char>> buffers;  // [side]
    std::vector<UnpairedCounter> unpaired;   // with the indexes of TaskState::unpaired
  };

  // Does units until all are taken or one has failed. An exception that left a thread would end the process.
  void work() try {
    Scratch scratch;
    for (size_t u = next_++; u < units_.size() && !failed_; u = next_++) do_unit(units_[u], &scratch);
  } catch (const std::bad_alloc&) {
    fail("not enough memory: lower --threads");
  }

  void fail(const std::string& problem) {
    const std::lock_guard lock(mutex_);
    if (!failed_.exchange(true)) problem_ = problem;
  }

  void do_unit(const Unit& unit, Scratch* scratch) {
    const ComparisonTask& task = tasks_[unit.task];
    const uint64_t first = unit.index * kUnit, end = std::min(task.elements, first + kUnit);
    scratch->counters.resize(std::max(scratch->counters.size(), task.sides.size()));
    scratch->buffers.resize(scratch->counters.size());
    scratch->unpaired.resize(std::max(scratch->unpaired.size(), 2 * task.parts.size()));
    std::vector<PartSums> sums(task.parts.size());
    for (uint64_t start = first; start < end; start += kBlock)
      if (!do_block(task, start, std::min(kBlock, end - start), scratch, &sums)) return;
    finish_unit(unit, scratch, std::move(sums));
  }

  // Reads `count` elements of each side from index `start` on, counts them in `scratch`, and adds the
  // results of each part to `sums`. Returns false after fail().
  bool do_block(const ComparisonTask& task, uint64_t start, uint64_t count, Scratch* scratch,
                std::vector<PartSums>* sums) {
    for (size_t s = 0; s < task.sides.size(); ++s) {
      const ComparisonTask::Side& side = task.sides[s];
      const DType type = side.place.tensor->dtype;
      std::vector<char>& buffer = scratch->buffers[s];
      buffer.resize(std::max<size_t>(buffer.size(), kBlock * size_of(type)));
      const std::string problem =
          side.checkpoint->read(side.place, start * size_of(type), count * size_of(type), buffer.data());
      if (!problem.empty()) return fail(problem), false;
      scratch->counters[s].count(buffer.data(), type, count);
    }
    for (size_t p = 0; p < task.parts.size(); ++p) {
      const char *a = scratch->buffers[task.parts[p].side_a].data(),
                 *b = scratch->buffers[task.parts[p].side_b].data();
      const auto [type_a, type_b] = types_of(task, p);
      const Difference of_block = difference(a, type_a, b, type_b, count);
      const bool has_same_bits = type_a == type_b && std::memcmp(a, b, count * size_of(type_a)) == 0;
      (*sums)[p].add({of_block, has_same_bits});
      if (of_block.non_finite == 0) continue;  // all values are finite, so none is unpaired
      scratch->unpaired[2 * p].count(a, type_a, b, type_b, count);
      scratch->unpaired[2 * p + 1].count(b, type_b, a, type_a, count);
    }
    return true;
  }

  // Adds the results of a unit to those of its task, and finishes the task after its last unit.
  void finish_unit(const Unit& unit, Scratch* scratch, std::vector<PartSums> sums) {
    const ComparisonTask& task = tasks_[unit.task];
    TaskState& state = states_[unit.task];
    std::vector<Histogram> histograms, unpaired;
    std::vector<double> roundings;
    for (size_t s = 0; s < task.sides.size(); ++s) {
      histograms.push_back(scratch->counters[s].take(task.sides[s].place.tensor->dtype));
      roundings.push_back(scratch->counters[s].take_rounding());
    }
    for (size_t p = 0; p < task.parts.size(); ++p) {
      const auto [type_a, type_b] = types_of(task, p);
      unpaired.push_back(scratch->unpaired[2 * p].take(type_a));
      unpaired.push_back(scratch->unpaired[2 * p + 1].take(type_b));
    }
    bool is_last = false;
    {
      const std::lock_guard lock(state.mutex);
      state.histograms.resize(task.sides.size());
      state.roundings.resize(units_of(task));
      state.sums.resize(units_of(task));
      state.unpaired.resize(unpaired.size());
      for (size_t s = 0; s < task.sides.size(); ++s) merge(histograms[s], &state.histograms[s]);
      for (size_t n = 0; n < unpaired.size(); ++n) merge(unpaired[n], &state.unpaired[n]);
      state.roundings[unit.index] = std::move(roundings);
      state.sums[unit.index] = std::move(sums);
      is_last = --state.units_left == 0;
    }
    if (is_last) finish_task(task, &state);  // without the lock: no other thread uses `state` any more
    report_progress(task, unit);
  }

  // Computes the distances of a task from `state`, adds its histograms to the pools, and clears `state`.
  void finish_task(const ComparisonTask& task, TaskState* state) {
    std::vector<Distribution> distributions(task.sides.size());
    for (size_t s = 0; s < task.sides.size(); ++s) {
      distributions[s].histogram = std::move(state->histograms[s]);
      for (const auto& unit : state->roundings) distributions[s].rounding += unit[s];
    }
    for (size_t p = 0; p < task.parts.size(); ++p) {
      const ComparisonTask::Part& part = task.parts[p];
      PartSums sum;
      for (const auto& unit : state->sums) sum.add(unit[p]);
      const Distribution a = distributions[part.side_a].without(state->unpaired[2 * p]);
      const Distribution b = distributions[part.side_b].without(state->unpaired[2 * p + 1]);
      TensorDistance& tensor = results_[part.pair].tensors[part.tensor];
      tensor.distance = distance_of(a, b, sum.difference);
      tensor.has_same_bits = sum.has_same_bits;
      tensor.rounding_a = a.rounding;
      tensor.rounding_b = b.rounding;
      Pool& pool = pools_[part.pair];
      const std::lock_guard lock(pool.mutex);
      merge(a.histogram, &pool.a);
      merge(b.histogram, &pool.b);
    }
    state->roundings.clear();
    state->sums.clear();
    state->histograms.clear();
    state->unpaired.clear();
  }

  // Computes, for each pair of checkpoints, the distance of all compared tensors pooled.
  void compute_pooled_distances() {
    for (size_t p = 0; p < results_.size(); ++p) {
      Distribution a{std::move(pools_[p].a), 0}, b{std::move(pools_[p].b), 0};
      Difference sum;
      for (const TensorDistance& tensor : results_[p].tensors) {
        sum.add(tensor.distance.difference);
        a.rounding += tensor.rounding_a;
        b.rounding += tensor.rounding_b;
      }
      results_[p].pooled = distance_of(a, b, sum);
    }
  }

  void report_progress(const ComparisonTask& task, const Unit& unit) {
    const std::lock_guard lock(mutex_);
    const uint64_t elements_done = std::min(kUnit, task.elements - unit.index * kUnit);
    for (const ComparisonTask::Side& side : task.sides)
      bytes_done_ += elements_done * size_of(side.place.tensor->dtype);
    if (progress_)
      progress_(bytes_ == 0 ? 1 : static_cast<double>(bytes_done_) / static_cast<double>(bytes_));
  }

  const std::vector<ComparisonTask>& tasks_;
  const std::function<void(double)>& progress_;
  std::vector<PairResult>& results_;
  std::vector<TaskState> states_;
  std::vector<Pool> pools_;
  std::vector<Unit> units_;      // of all tasks
  std::atomic<size_t> next_{0};  // index of the next unit
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // protects problem_ and bytes_done_
  std::string problem_;
  uint64_t bytes_ = 0, bytes_done_ = 0;  // bytes of all tasks, and of the finished units
};

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

// Returns where a tensor is stored (file and description), or null if the checkpoint does not have it.
const Checkpoint::Place* find(const Checkpoint& checkpoint, const std::string& name) {
  const auto found = checkpoint.tensors.find(name);
  return found == checkpoint.tensors.end() ? nullptr : &found->second;
}

// Whether a tensor can be compared: it exists in both checkpoints (not null) with supported types (not kNone)
// and the same shape. If not, adds the reason to the result. If so, adds the types to the result if they
// differ.
bool check_comparable(const std::string& name, const Checkpoint::Place* a, const Checkpoint::Place* b,
                      PairResult* result) {
  if (!a && !b) return false;  // only other checkpoints have the tensor
  if (!b) return result->only_in_a.push_back(name), false;
  if (!a) return result->only_in_b.push_back(name), false;
  const StoredTensor &in_a = *a->tensor, &in_b = *b->tensor;
  if (in_a.dtype == DType::kNone || in_b.dtype == DType::kNone)
    return result->unsupported_types.push_back({name, in_a.type, in_b.type}), false;
  if (in_a.shape != in_b.shape)
    return result->different_shapes.push_back({name, shape_text(in_a.shape), shape_text(in_b.shape)}), false;
  if (in_a.dtype != in_b.dtype) result->different_types.push_back({name, in_a.type, in_b.type});
  return true;
}

// Returns the index of the task's side for a checkpoint. Adds the side if the task does not have it.
size_t find_or_add_side(const Checkpoint& checkpoint, const Checkpoint::Place& place, ComparisonTask* task) {
  for (size_t s = 0; s < task->sides.size(); ++s)
    if (task->sides[s].checkpoint == &checkpoint) return s;
  task->sides.push_back({&checkpoint, place});
  return task->sides.size() - 1;
}

// Returns the task of the tensor's name and shape. Adds it if needed. Tasks of the name begin at `first`.
ComparisonTask* find_or_add_task(const StoredTensor& tensor, size_t first,
                                 std::vector<ComparisonTask>* tasks) {
  for (size_t t = first; t < tasks->size(); ++t)
    if ((*tasks)[t].sides.front().place.tensor->shape == tensor.shape) return &(*tasks)[t];
  tasks->push_back({});
  tasks->back().elements = tensor.elements();
  return &tasks->back();
}

std::vector<std::string> all_names(const std::vector<Checkpoint>& checkpoints) {
  std::set<std::string> names;
  for (const Checkpoint& checkpoint : checkpoints)
    for (const auto& [name, place] : checkpoint.tensors) names.insert(name);
  std::vector<std::string> sorted(names.begin(), names.end());
  std::stable_sort(sorted.begin(), sorted.end(), natural_less);
  return sorted;
}

}  // namespace

std::vector<ComparisonTask> plan_comparison(const std::vector<Checkpoint>& checkpoints,
                                            const std::vector<PairOfCheckpoints>& pairs,
                                            std::vector<PairResult>* results) {
  const size_t first_result = results->size();
  for (const PairOfCheckpoints& pair : pairs) {
    results->push_back({});
    results->back().pair = pair;
  }
  std::vector<ComparisonTask> tasks;
  for (const std::string& name : all_names(checkpoints)) {
    const size_t first_task = tasks.size();
    for (size_t p = 0; p < pairs.size(); ++p) {
      const Checkpoint &in_a = checkpoints[pairs[p].a], &in_b = checkpoints[pairs[p].b];
      const Checkpoint::Place *a = find(in_a, name), *b = find(in_b, name);
      PairResult& result = (*results)[first_result + p];
      if (!check_comparable(name, a, b, &result)) continue;
      ComparisonTask* task = find_or_add_task(*a->tensor, first_task, &tasks);
      const size_t side_a = find_or_add_side(in_a, *a, task), side_b = find_or_add_side(in_b, *b, task);
      task->parts.push_back({first_result + p, result.tensors.size(), side_a, side_b});
      result.tensors.push_back({name, a->tensor->type, b->tensor->type, a->tensor->shape, {}, 0, 0});
    }
  }
  return tasks;
}

std::string compare(const std::vector<Checkpoint>& checkpoints, const std::vector<PairOfCheckpoints>& pairs,
                    int threads, const std::function<void(double)>& progress, Comparison* result) {
  const auto start = std::chrono::steady_clock::now();
  *result = {};
  for (const Checkpoint& checkpoint : checkpoints) result->paths.push_back(checkpoint.path);
  const std::vector<ComparisonTask> tasks = plan_comparison(checkpoints, pairs, &result->pairs);
  Comparer comparer(tasks, progress, &result->pairs);
  const std::string problem = comparer.run(threads);
  result->bytes = comparer.bytes();
  result->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return problem;
}

}  // namespace foreshock::lab
