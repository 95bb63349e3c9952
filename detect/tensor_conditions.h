// Finds conditions of weight tensors: no gradient, a gradient of 0, values that do not change, gradients that
// are clipped away, gains that decay, tensors that were tied before. The facts come from the looks at the
// tensors: one step in each interval of steps, another step for each tensor.
#ifndef FORESHOCK_DETECT_TENSOR_CONDITIONS_H_
#define FORESHOCK_DETECT_TENSOR_CONDITIONS_H_

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>
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
  std::vector<int64_t> shape = {};     // empty: unknown
  std::optional<double> rms = {}, mean_abs = {};
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
  std::optional<double> gradient_rms = {}, epsilon_dominated = {}, learning_rate = {}, weight_decay = {};
  std::optional<uint64_t> elements = {};  // of gradient_rms
  std::optional<uint64_t> nonfinite_gradient = {};
  std::optional<int64_t> optimizer_step = {};  // its own count of steps for this tensor
};

// What a look at a gradient (gradient_rules.h) has found before a step of the optimizer.
struct LookFacts {
  static constexpr size_t kValues = 5;

  std::string tensor;
  int64_t step = 0;
  bool is_16_bit = false;
  bool is_absent = false;      // no backward pass has contributed, and there is no gradient
  bool is_zero = false;        // backward passes have contributed nothing but 0, and the gradient is 0
  bool is_sample = false;      // only some of the values were read
  bool is_nonfinite = false;   // a value that was read is NaN or Inf
  uint64_t parameters = 0;     // of this look
  double gradient_norm = NAN;  // of what the optimizer uses; NaN: unknown
  std::array<double, kValues> values = {};  // the norm of the parameter's values, and their sketch
};

// The rules over all tensors of a run.
class TensorRules {
 public:
  static constexpr size_t kMostTensors = 8192;  // further tensors are ignored

  void observe(const TensorFacts& facts);
  // Must follow the facts of the tensor for the same step; else it is ignored.
  void observe(const OptimizerFacts& facts, ConditionBoard* board);
  // A look at the gradient and the values of a tensor, which has no need of a snapshot.
  void observe(const LookFacts& facts, ConditionBoard* board);
  void observe_step(const StepFacts& facts, ConditionBoard* board);
  // Another process goes on with the training.
  void begin_process();

  template <class State>
  void fields(State& state) {
    map_fields(state, tensors_, kMostTensors);
    for (bool* flag : {&has_gradient_, &has_rate_, &has_moved_, &has_nonfinite_, &has_all_looks_,
                       &had_all_looks_, &is_partly_known_})
      state(*flag);
    for (int64_t* step : {&first_step_, &last_step_, &most_optimizer_steps_, &interval_step_, &little_since_})
      state(*step);
    for (uint64_t* count : {&known_looks_, &processes_, &little_looks_}) state(*count);
    for (double* number : {&most_rate_, &last_rate_, &least_norm_}) state(*number);
    state(interval_tensor_);
  }

 private:
  struct Tensor {
    int64_t step = -1, optimizer_step = -1;    // of the last look
    int64_t none_since = -1, zero_since = -1;  // first look of the row without a gradient, with zeros
    int64_t finite_step = -1;                  // last look at which all values were finite; -1: none
    int64_t unused_since = -1;                 // first look of the row with a gradient and without a change
    uint64_t looks = 0, none_looks = 0, zero_looks = 0, unused_looks = 0, nonfinite = 0;
    std::string hash;
    double unmoved = -1;  // share of sampled values that did not change; -1: unknown or not judged
    bool has_moved = false, is_moved_known = false, is_16_bit = false;
    bool has_gradient = false, is_none = false, is_zero = false, is_unused = false;
    std::string shape;
    uint64_t process = 0;           // number of the process that had it first
    double used_square = 0;         // squared norm of the gradient that the optimizer used
    double first_gain = 0;          // mean magnitude at the first look, if it is a gain; else 0
    double decay = 0;               // rate times weight decay, summed since then
    double rms = 0, first_rms = 0;  // of the values, at the last and the first look
    double gain = 0;                // mean magnitude at the last look
    int64_t steps = 0;              // since the look before
    bool is_decayed = false, is_matrix = false;
    int64_t decayed_since = -1;
    int64_t look_step = -1;                              // of the last look at the gradient; -1: none
    std::array<double, LookFacts::kValues> values = {};  // at that look
    bool is_nonfinite_noted = false;
    bool has_two_looks = false, has_turned = false;  // has_turned: values changed other than by a factor

    template <class State>
    void fields(State& state) {
      for (int64_t* step_of : {&step, &optimizer_step, &none_since, &zero_since, &finite_step, &unused_since})
        state(*step_of);
      for (uint64_t* count : {&looks, &none_looks, &zero_looks, &unused_looks, &nonfinite}) state(*count);
      state(hash);
      state(unmoved);
      for (bool* flag :
           {&has_moved, &is_moved_known, &is_16_bit, &has_gradient, &is_none, &is_zero, &is_unused,
            &is_decayed, &is_matrix, &has_two_looks, &has_turned, &is_nonfinite_noted})
        state(*flag);
      state(shape);
      state(process);
      for (double* number : {&used_square, &first_gain, &decay, &rms, &first_rms, &gain}) state(*number);
      for (int64_t* number : {&decayed_since, &steps, &look_step}) state(*number);
      for (double& number : values) state(number);
    }
  };

  Tensor* tensor_of(const std::string& name);  // null if there are too many
  void extend_rows(bool is_absent, bool is_zero, int64_t step, Tensor* tensor) const;
  void judge_values(const LookFacts& facts, Tensor* tensor, ConditionBoard* board);
  void add_used(const LookFacts& facts, ConditionBoard* board);
  void judge_used(ConditionBoard* board);
  void judge_gradient(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board);
  void judge_unused(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board);
  void judge_optimizer_step(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board);
  void judge_unmoved(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board);
  void judge_nonfinite(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board);
  void note_nonfinite(const std::string& name, int64_t step, Tensor* tensor, ConditionBoard* board) const;
  void judge_all(int64_t step, ConditionBoard* board);
  void judge_clipping(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board);
  void judge_gain(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board);
  double left_of_matrices() const;
  void judge_name(const OptimizerFacts& facts, const Tensor& tensor, ConditionBoard* board) const;
  Condition* report(ConditionId id, bool Tensor::*flag, int64_t Tensor::*since, int64_t step,
                    ConditionBoard* board) const;
  bool has_sibling_with_gradient(const std::string& name) const;

  std::map<std::string, Tensor> tensors_;
  bool has_gradient_ = false, has_rate_ = false;  // any tensor had a gradient other than 0, a rate above 0
  bool has_moved_ = false;                        // any look saw a change
  bool is_partly_known_ = false;  // a look read only some values of a tensor, and these do not change
  bool has_nonfinite_ = false;    // a loss or gradient norm was not finite
  int64_t first_step_ = -1, last_step_ = -1;  // of the looks
  int64_t most_optimizer_steps_ = 0;          // largest OptimizerFacts::optimizer_step
  uint64_t known_looks_ = 0;                  // looks that show whether the values change
  double most_rate_ = 0, last_rate_ = 0;      // of the steps
  // An interval of looks begins at each look at this tensor.
  std::string interval_tensor_;
  int64_t interval_step_ = -1;
  double least_norm_ = INFINITY;  // smallest norm of the gradient before clipping in this interval
  // Of a look at the gradients: its step, its parameters so far, and the squared norm that the optimizer
  // uses. Not saved, nor are the norms before clipping of the last steps: {step, norm}.
  int64_t used_step_ = -1;
  uint64_t used_parameters_ = 0, used_of_ = 0;
  double used_square_ = 0;
  std::array<std::pair<int64_t, double>, 32> norms_ = {};
  uint64_t little_looks_ = 0;  // looks in a row that found little of the gradient left
  int64_t little_since_ = 0;
  uint64_t processes_ = 0;                              // processes that have replaced another one
  bool has_all_looks_ = false, had_all_looks_ = false;  // each tensor of this process, of the one before
};

// Returns the names with their numbers replaced by *, each with its count: "blocks.*.norm.weight (12),
// head.weight". At most three are named.
std::string patterns_text(const std::vector<std::string>& names);

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_TENSOR_CONDITIONS_H_
