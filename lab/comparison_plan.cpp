#include "lab/comparison_plan.h"

#include <algorithm>
#include <set>

namespace foreshock::lab {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

const Checkpoint::Place* find(const Checkpoint& checkpoint, const std::string& name) {
  const auto found = checkpoint.tensors.find(name);
  return found == checkpoint.tensors.end() ? nullptr : &found->second;
}

// Whether both are there, of types we know and of one shape; if not, the result says why.
bool comparable(const std::string& name, const Checkpoint::Place* a, const Checkpoint::Place* b,
                PairResult* result) {
  if (!a && !b) return false;
  if (!b) return result->only_in_a.push_back(name), false;
  if (!a) return result->only_in_b.push_back(name), false;
  const StoredTensor &in_a = *a->tensor, &in_b = *b->tensor;
  if (in_a.dtype == DType::kNone || in_b.dtype == DType::kNone)
    return result->untouched.push_back({name, in_a.type, in_b.type}), false;
  if (in_a.shape != in_b.shape)
    return result->shapes.push_back({name, shape_text(in_a.shape), shape_text(in_b.shape)}), false;
  if (in_a.dtype != in_b.dtype) result->types.push_back({name, in_a.type, in_b.type});
  return true;
}

size_t side_of(const Checkpoint& checkpoint, const Checkpoint::Place& place, ComparisonTask* task) {
  for (size_t s = 0; s < task->sides.size(); ++s)
    if (task->sides[s].checkpoint == &checkpoint) return s;
  task->sides.push_back({&checkpoint, place});
  return task->sides.size() - 1;
}

// The task among those of one name that has the shape, or a new one.
ComparisonTask* task_of(const StoredTensor& tensor, size_t first, std::vector<ComparisonTask>* tasks) {
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
      if (!comparable(name, a, b, &result)) continue;
      ComparisonTask* task = task_of(*a->tensor, first_task, &tasks);
      const size_t side_a = side_of(in_a, *a, task), side_b = side_of(in_b, *b, task);
      task->parts.push_back({first_result + p, result.tensors.size(), side_a, side_b});
      result.tensors.push_back({name, a->tensor->type, b->tensor->type, a->tensor->shape, {}, 0, 0});
    }
  }
  return tasks;
}

}  // namespace foreshock::lab
