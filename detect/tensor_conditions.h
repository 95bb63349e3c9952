// Finds conditions of weight tensors: no gradient, a gradient of 0, values that do not change. The facts come
// from the looks at the tensors: one step in each interval of steps, another step for each tensor.
#ifndef FORESHOCK_DETECT_TENSOR_CONDITIONS_H_
#define FORESHOCK_DETECT_TENSOR_CONDITIONS_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "detect/condition_rules.h"

namespace foreshock {

// A tensor's values after a step; unknown numbers are absent.
struct TensorFacts {
  std::string tensor;
  int64_t step = 0;
  bool is_16_bit = false;
  std::optional<double> update_max = {};  // largest change of a value by this step
  std::string histogram_hash = {};        // "": unknown
  // Values that are compared with the look before, and how many of these have the same bits.
  std::optional<uint64_t> sample_elements = {}, sample_unmoved = {};
  std::optional<uint64_t> nonfinite = {};
  std::optional<uint64_t> parts = {};  // different parts of the tensor, on different ranks
};

enum class GradientState : int { kUnknown, kPresent, kAbsent, kNotRequired };
inline constexpr int kGradientStates = 4;

constexpr const char* name_of(GradientState state) {  // "" if unknown
  constexpr const char* kNames[kGradientStates] = {"", "present", "absent", "not_required"};
  return kNames[static_cast<int>(state)];
}

// What the optimizer had for the tensor in the same step.
struct OptimizerFacts {
  std::string tensor;
  int64_t step = 0;
  GradientState gradient = GradientState::kUnknown;
  std::optional<double> gradient_rms = {}, epsilon_dominated = {}, learning_rate = {};
  std::optional<uint64_t> nonfinite_gradient = {};
  std::optional<int64_t> optimizer_step = {};  // its own count of steps for this tensor
};

// The rules over all tensors of a run.
class TensorRules {
 public:
  static constexpr size_t kMostTensors = 8192;  // further tensors are ignored

  void observe(const TensorFacts& facts);
  // Must follow the facts of the tensor for the same step; else it is ignored.
  void observe(const OptimizerFacts& facts, ConditionBoard* board);
  void observe_step(const StepFacts& facts);

  template <class State>
  void fields(State& state) {
    map_fields(state, tensors_, kMostTensors);
    for (bool* flag : {&has_gradient_, &has_rate_, &has_moved_, &has_nonfinite_}) state(*flag);
    for (int64_t* step : {&first_step_, &last_step_, &most_optimizer_steps_}) state(*step);
    state(known_looks_);
    for (double* rate : {&most_rate_, &last_rate_}) state(*rate);
  }

 private:
  struct Tensor {
    int64_t step = -1, optimizer_step = -1;    // of the last look
    int64_t none_since = -1, zero_since = -1;  // first look of the row without a gradient, with zeros
    int64_t finite_step = -1;                  // last look at which all values were finite; -1: none
    uint64_t looks = 0, none_looks = 0, zero_looks = 0, nonfinite = 0;
    std::string hash;
    double unmoved = -1;  // share of sampled values that did not change; -1: unknown or not judged
    bool has_moved = false, is_moved_known = false, is_16_bit = false;
    bool has_gradient = false, is_none = false, is_zero = false;

    template <class State>
    void fields(State& state) {
      for (int64_t* step_of : {&step, &optimizer_step, &none_since, &zero_since, &finite_step})
        state(*step_of);
      for (uint64_t* count : {&looks, &none_looks, &zero_looks, &nonfinite}) state(*count);
      state(hash);
      state(unmoved);
      for (bool* flag : {&has_moved, &is_moved_known, &is_16_bit, &has_gradient, &is_none, &is_zero})
        state(*flag);
    }
  };

  void judge_gradient(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board);
  void judge_optimizer_step(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board);
  void judge_unmoved(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board);
  void judge_nonfinite(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board);
  void judge_all(int64_t step, ConditionBoard* board);
  void report(ConditionId id, bool Tensor::*flag, int64_t Tensor::*since, int64_t step,
              ConditionBoard* board) const;
  bool has_sibling_with_gradient(const std::string& name) const;

  std::map<std::string, Tensor> tensors_;
  bool has_gradient_ = false, has_rate_ = false;  // any tensor had a gradient other than 0, a rate above 0
  bool has_moved_ = false;                        // any look saw a change
  bool has_nonfinite_ = false;                    // a loss or gradient norm was not finite
  int64_t first_step_ = -1, last_step_ = -1;      // of the looks
  int64_t most_optimizer_steps_ = 0;              // largest OptimizerFacts::optimizer_step
  uint64_t known_looks_ = 0;                      // looks that show whether the values change
  double most_rate_ = 0, last_rate_ = 0;          // of the steps
};

// Returns the names with their numbers replaced by *, each with its count: "blocks.*.norm.weight (12),
// head.weight". At most three are named.
std::string patterns_text(const std::vector<std::string>& names);

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_TENSOR_CONDITIONS_H_
