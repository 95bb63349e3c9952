// The rules over the looks at weight tensors.
#include "detect/tensor_conditions.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

namespace foreshock {
namespace {

// Returns the name with each part that is a number replaced by *: "blocks.3.norm.weight" becomes
// "blocks.*.norm.weight".
std::string pattern_of(const std::string& name) {
  std::string pattern;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const bool is_number = end > begin && std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin),
                                                      name.begin() + static_cast<std::ptrdiff_t>(end),
                                                      [](unsigned char c) { return std::isdigit(c) != 0; });
    pattern += is_number ? "*" : name.substr(begin, end - begin);
    if (end < name.size()) pattern += '.';
    begin = end + 1;
  }
  return pattern;
}

// Whether the values of a vector are alike and near 1, as gains of norms are at first.
bool is_gain(const TensorFacts& facts) {
  return facts.shape.size() == 1 && facts.rms && facts.mean_abs && *facts.rms <= 1.02 * *facts.mean_abs &&
         *facts.mean_abs > 0.25 && *facts.mean_abs < 1.25;
}

}  // namespace

std::string patterns_text(const std::vector<std::string>& names) {
  constexpr size_t kMostNamed = 3;
  std::map<std::string, std::vector<std::string>> patterns;
  for (const std::string& name : names) patterns[pattern_of(name)].push_back(name);
  std::string text;
  size_t named = 0, more = 0;
  for (const auto& [pattern, of] : patterns) {
    if (++named > kMostNamed) {
      more += of.size();
      continue;
    }
    text += (text.empty() ? "" : ", ") +
            (of.size() == 1 ? of[0] : pattern + " (" + std::to_string(of.size()) + ")");
  }
  return more == 0 ? text : text + " and " + std::to_string(more) + " more";
}

void TensorRules::observe_step(const StepFacts& facts, ConditionBoard* board) {
  const auto is_nonfinite = [](const std::optional<double>& x) { return x && !std::isfinite(*x); };
  has_nonfinite_ = has_nonfinite_ || is_nonfinite(facts.loss) || is_nonfinite(facts.gradient_norm);
  if (facts.learning_rate && std::isfinite(*facts.learning_rate)) {
    last_rate_ = *facts.learning_rate;
    most_rate_ = std::max(most_rate_, last_rate_);
  }
  has_rate_ = has_rate_ || !facts.learning_rate || *facts.learning_rate != 0;
  if (facts.gradient_norm && *facts.gradient_norm > 0)
    least_norm_ = std::min(least_norm_, *facts.gradient_norm);
  if (!facts.gradient_norm || facts.step < 0) return;
  norms_[static_cast<size_t>(facts.step) % norms_.size()] = {facts.step, *facts.gradient_norm};
  if (facts.step == used_step_) judge_used(board);
}

void TensorRules::begin_process() {
  ++processes_;
  had_all_looks_ = std::exchange(has_all_looks_, false);
  interval_tensor_.clear();
}

TensorRules::Tensor* TensorRules::tensor_of(const std::string& name) {
  const auto known = tensors_.find(name);
  if (known != tensors_.end()) return &known->second;
  if (tensors_.size() >= kMostTensors) return nullptr;
  Tensor& tensor = tensors_[name];
  tensor.process = processes_;
  return &tensor;
}

void TensorRules::observe(const TensorFacts& facts) {
  Tensor* known = tensor_of(facts.tensor);
  if (known == nullptr) return;
  Tensor& tensor = *known;
  if (facts.step < tensor.step) {  // the training has gone back to an earlier step
    const uint64_t process = std::exchange(tensor, {}).process;
    tensor.process = process;
    most_optimizer_steps_ = 0;
  }
  tensor.steps = tensor.step < 0 ? 0 : facts.step - tensor.step;
  tensor.is_matrix = facts.shape.size() == 2;
  tensor.shape.clear();
  for (const int64_t size : facts.shape) tensor.shape += std::to_string(size) + ' ';
  tensor.rms = facts.rms.value_or(0);
  tensor.gain = facts.mean_abs.value_or(0);
  if (tensor.looks == 0) tensor.first_rms = tensor.rms;
  if (tensor.looks == 0 && is_gain(facts)) tensor.first_gain = tensor.gain;
  const bool knows_hashes = tensor.looks > 0 && !tensor.hash.empty() && !facts.histogram_hash.empty();
  const bool moves =
      (facts.update_max && *facts.update_max > 0) || (knows_hashes && tensor.hash != facts.histogram_hash);
  // Without a copy from before the step, the first look does not show whether the values change.
  tensor.is_moved_known = moves || facts.update_max || knows_hashes;
  tensor.has_moved = tensor.has_moved || moves;
  tensor.is_16_bit = facts.is_16_bit;
  tensor.hash = facts.histogram_hash;
  tensor.step = facts.step;
  tensor.nonfinite = facts.nonfinite.value_or(0);
  tensor.unmoved = -1;
  if (facts.sample_elements && facts.sample_unmoved && *facts.sample_elements > 0)
    tensor.unmoved = static_cast<double>(*facts.sample_unmoved) / static_cast<double>(*facts.sample_elements);
  ++tensor.looks;
  known_looks_ += tensor.is_moved_known && tensor.nonfinite == 0;  // NaN stays NaN
  if (first_step_ < 0) first_step_ = facts.step;
  last_step_ = facts.step;
  has_moved_ = has_moved_ || moves;
}

void TensorRules::observe(const OptimizerFacts& facts, ConditionBoard* board) {
  const auto found = tensors_.find(facts.tensor);
  if (found == tensors_.end() || found->second.step != facts.step) return;
  Tensor& tensor = found->second;
  has_rate_ = has_rate_ || !facts.learning_rate || *facts.learning_rate != 0;
  judge_gradient(facts, &tensor, board);
  judge_unused(facts, &tensor, board);
  judge_optimizer_step(facts, &tensor, board);
  judge_unmoved(facts, &tensor, board);
  judge_nonfinite(facts, &tensor, board);
  judge_clipping(facts, &tensor, board);
  judge_gain(facts, &tensor, board);
  judge_name(facts, tensor, board);
  judge_all(facts.step, board);
}

// Looks at gradients are at a few steps of an interval, and cost so little that short runs have them too.
void TensorRules::observe(const LookFacts& facts, ConditionBoard* board) {
  Tensor* tensor = tensor_of(facts.tensor);
  if (tensor == nullptr) return;
  if (facts.step < tensor->look_step) {  // the training has gone back to an earlier step
    const uint64_t process = std::exchange(*tensor, {}).process;
    tensor->process = process;
  }
  const bool moves = tensor->look_step >= 0 && tensor->values != facts.values;
  judge_values(facts, tensor, board);
  add_used(facts, board);
  extend_rows(facts.is_absent, facts.is_zero, facts.step, tensor);
  tensor->has_gradient = facts.gradient_norm > 0;
  has_gradient_ = has_gradient_ || tensor->has_gradient;
  const bool was_none = tensor->is_none, was_zero = tensor->is_zero, was_unused = tensor->is_unused;
  const int64_t none_steps = has_sibling_with_gradient(facts.tensor) ? kUnusedSteps : kNoGradientSteps;
  tensor->is_none = has_gradient_ && tensor->none_looks >= 2 && !tensor->has_moved && !tensor->has_turned &&
                    facts.step - tensor->none_since >= none_steps;
  tensor->is_zero = has_gradient_ && tensor->zero_looks >= 3 && tensor->has_two_looks &&
                    !tensor->has_turned && facts.step - tensor->zero_since >= 2 * none_steps;
  const bool is_large =
      tensor->has_gradient && last_rate_ * facts.gradient_norm > kUnusedLeast * facts.values[0];
  const bool is_candidate = is_large && tensor->has_two_looks && !moves && !facts.is_16_bit;
  if (!is_candidate) tensor->unused_looks = 0;
  if (is_candidate && tensor->unused_looks++ == 0) tensor->unused_since = facts.step;
  tensor->is_unused =
      has_moved_ && tensor->unused_looks >= 3 && facts.step - tensor->unused_since >= 2 * kNoGradientSteps;
  if (tensor->is_none || was_none)
    report(ConditionId::kNoGradient, &Tensor::is_none, &Tensor::none_since, facts.step, board);
  if (tensor->is_zero || was_zero)
    report(ConditionId::kZeroGradient, &Tensor::is_zero, &Tensor::zero_since, facts.step, board);
  if (tensor->is_unused || was_unused)
    report(ConditionId::kGradientUnused, &Tensor::is_unused, &Tensor::unused_since, facts.step, board);
  judge_all(facts.step, board);
}

// Compares the values with those of the look before. Equal sketches are those of equal values. Of a tensor of
// which only some values were read, the others may have changed if these have no gradient.
void TensorRules::judge_values(const LookFacts& facts, Tensor* tensor, ConditionBoard* board) {
  const bool is_first = tensor->look_step < 0;
  tensor->look_step = facts.step;
  const auto before = std::exchange(tensor->values, facts.values);
  if (first_step_ < 0) first_step_ = facts.step;
  // The look is before the step, so the values are those after the step before.
  if (!facts.is_nonfinite && std::isfinite(facts.values[0]))
    tensor->finite_step = std::max(tensor->finite_step, facts.step - 1);
  if (facts.is_nonfinite && std::isfinite(facts.gradient_norm))
    note_nonfinite(facts.tensor, facts.step, tensor, board);
  if (is_first || !std::isfinite(before[0]) || !std::isfinite(facts.values[0])) return;
  const bool moves = before != facts.values;
  is_partly_known_ = is_partly_known_ || (!moves && facts.is_sample && !(facts.gradient_norm > 0));
  known_looks_ += !is_partly_known_;
  tensor->has_two_looks = true;
  has_moved_ = has_moved_ || moves;
  // Weight decay multiplies all values by one factor. Each step rounds them, in fp32 by 2^-24.
  const double factor = before[0] > 0 ? facts.values[0] / before[0] : 1;
  double square = 0;
  for (size_t k = 0; k < before.size(); ++k)
    square += (facts.values[k] - factor * before[k]) * (facts.values[k] - factor * before[k]);
  tensor->has_turned = tensor->has_turned || factor > 1 || std::sqrt(square) > 0x1p-18 * facts.values[0];
}

// A look at all parameters, of which all values were read, gives the norm of the gradient that the optimizer
// uses. The norm before clipping is known when the step has ended, before or after the last of these lines.
void TensorRules::add_used(const LookFacts& facts, ConditionBoard* board) {
  if (std::exchange(used_step_, facts.step) != facts.step) {
    used_parameters_ = 0;
    used_square_ = 0;
  }
  used_of_ = facts.parameters;
  ++used_parameters_;
  const bool has_none = facts.is_absent || facts.is_zero;
  if (!has_none) used_square_ += facts.is_sample ? NAN : facts.gradient_norm * facts.gradient_norm;
  judge_used(board);
}

void TensorRules::judge_used(ConditionBoard* board) {
  const auto& [step, norm] = norms_[static_cast<size_t>(used_step_) % norms_.size()];
  if (used_parameters_ != used_of_ || step != used_step_ || !(used_square_ > 0) || !std::isfinite(norm))
    return;
  used_parameters_ = 0;  // judged
  const double used = std::sqrt(used_square_);
  if (kClippedAway * used >= norm) {
    if (little_looks_ >= kLittleLooks) board->end(ConditionId::kClippedAway, -1);
    little_looks_ = 0;
    return;
  }
  if (little_looks_++ == 0) little_since_ = step;
  if (little_looks_ < kLittleLooks || step - little_since_ < kNoGradientSteps) return;
  Condition* found = board->note(ConditionId::kClippedAway, -1, little_since_, step);
  if (found != nullptr) found->value = used, found->usual = norm;
}

void TensorRules::extend_rows(bool is_absent, bool is_zero, int64_t step, Tensor* tensor) const {
  if (!is_absent) tensor->none_looks = 0;
  if (!is_zero) tensor->zero_looks = 0;
  if (is_absent && tensor->none_looks++ == 0) tensor->none_since = step;
  if (is_zero && tensor->zero_looks++ == 0) tensor->zero_since = step;
}

void TensorRules::judge_gradient(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board) {
  const bool is_zero = facts.gradient_rms && *facts.gradient_rms == 0;
  tensor->has_gradient = facts.gradient_rms && *facts.gradient_rms > 0;
  has_gradient_ = has_gradient_ || tensor->has_gradient;
  extend_rows(facts.gradient == GradientState::kAbsent, is_zero, facts.step, tensor);
  const auto spans = [&](int64_t since, int64_t steps) { return facts.step - since >= steps; };
  const bool was_none = tensor->is_none, was_zero = tensor->is_zero;
  // A module of which some copies have a gradient, such as an expert, may be unused for a while.
  const int64_t none_steps = has_sibling_with_gradient(facts.tensor) ? kUnusedSteps : kNoGradientSteps;
  // An optimizer that counts its steps for each tensor has no state for one that never had a gradient.
  const bool has_no_state = !facts.optimizer_step && most_optimizer_steps_ >= none_steps;
  const bool was_always_none = tensor->none_looks >= 2 && !tensor->has_moved && !tensor->has_turned;
  tensor->is_none =
      was_always_none && has_gradient_ && (has_no_state || spans(tensor->none_since, none_steps));
  if (tensor->is_none && has_no_state)
    tensor->none_since = std::min(tensor->none_since, facts.step - most_optimizer_steps_ + 1);
  const bool has_empty_moment = facts.epsilon_dominated && *facts.epsilon_dominated == 1;
  const bool was_always_zero =
      tensor->zero_looks >= 3 && spans(tensor->zero_since, 2 * none_steps) &&
      (has_empty_moment || !tensor->has_moved || (tensor->has_two_looks && !tensor->has_turned));
  const bool has_steps = facts.optimizer_step && *facts.optimizer_step >= 2 * none_steps;
  tensor->is_zero = is_zero && has_gradient_ && ((has_empty_moment && has_steps) || was_always_zero);
  if (tensor->is_none || was_none)
    report(ConditionId::kNoGradient, &Tensor::is_none, &Tensor::none_since, facts.step, board);
  if (tensor->is_zero || was_zero)
    report(ConditionId::kZeroGradient, &Tensor::is_zero, &Tensor::zero_since, facts.step, board);
}

// 16-bit weights are judged by kWeightsStuck. A tensor with a gradient that had an optimizer's count of steps
// and has none now was replaced by a parameter that no optimizer has, so earlier changes do not count.
void TensorRules::judge_unused(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board) {
  if (tensor->has_gradient && !facts.optimizer_step && std::exchange(tensor->optimizer_step, -1) >= 0)
    tensor->has_moved = false;
  const double own_rate = facts.learning_rate.value_or(0), rate = own_rate > 0 ? own_rate : last_rate_;
  const bool is_large = tensor->has_gradient && rate * *facts.gradient_rms > kUnusedLeast * tensor->rms;
  const bool is_candidate = is_large && tensor->is_moved_known && !tensor->has_moved && !tensor->is_16_bit;
  if (!is_candidate) tensor->unused_looks = 0;
  if (is_candidate && tensor->unused_looks++ == 0) tensor->unused_since = facts.step;
  const bool was_unused = tensor->is_unused;
  tensor->is_unused =
      has_moved_ && tensor->unused_looks >= 3 && facts.step - tensor->unused_since >= 2 * kNoGradientSteps;
  if (tensor->is_unused || was_unused)
    report(ConditionId::kGradientUnused, &Tensor::is_unused, &Tensor::unused_since, facts.step, board);
}

bool TensorRules::has_sibling_with_gradient(const std::string& name) const {
  const std::string pattern = pattern_of(name);
  if (pattern == name) return false;  // no number in the name
  return std::any_of(tensors_.begin(), tensors_.end(), [&](const auto& each) {
    return each.second.has_gradient && each.first != name && pattern_of(each.first) == pattern;
  });
}

// Reports the tensors that have the flag as one condition.
Condition* TensorRules::report(ConditionId id, bool Tensor::*flag, int64_t Tensor::*since, int64_t step,
                               ConditionBoard* board) const {
  std::vector<std::string> names;
  int64_t first = step;
  for (const auto& [name, tensor] : tensors_)
    if (tensor.*flag) {
      names.push_back(name);
      first = std::min(first, tensor.*since);
    }
  if (names.empty()) {
    board->end(id, -1);
    return nullptr;
  }
  Condition* found = board->note(id, -1, first, step);
  if (found != nullptr) {
    found->since_step = std::min(found->since_step, first);
    found->count = names.size();
    found->place = patterns_text(names);
  }
  return found;
}

// The optimizer counts its steps for each tensor, so a lower count means that its state was lost.
void TensorRules::judge_optimizer_step(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board) {
  if (!facts.optimizer_step) return;
  most_optimizer_steps_ = std::max(most_optimizer_steps_, *facts.optimizer_step);
  const int64_t before = tensor->optimizer_step;
  tensor->optimizer_step = *facts.optimizer_step;
  if (before < 0 || *facts.optimizer_step >= before) return;
  const int64_t since = facts.step - *facts.optimizer_step + 1;
  if (Condition* found = board->note(ConditionId::kOptimizerBeganAgain, -1, since, facts.step)) {
    if (found->count++ == 0) {
      found->place = facts.tensor;
      found->value = static_cast<double>(*facts.optimizer_step);
      found->usual = static_cast<double>(before);
    }
    found->is_over = true;
  }
}

// The share is judged at the usual rate only: not in a warm-up, and not at the end of a decay.
void TensorRules::judge_unmoved(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board) {
  const double rate = facts.learning_rate.value_or(last_rate_);
  if (!tensor->is_16_bit || !tensor->has_gradient || rate * 2 < most_rate_) tensor->unmoved = -1;
  double sum = 0;
  size_t judged = 0, of = 0;  // tensors whose share is known; 16-bit tensors
  for (const auto& [name, each] : tensors_) {
    of += each.is_16_bit;
    if (each.unmoved < 0) continue;
    sum += each.unmoved;
    ++judged;
  }
  if (judged < kUnmovedTensors && judged < of) return;
  if (judged == 0 || 2 * judged < of) return;
  const double mean = sum / static_cast<double>(judged);
  if (mean < kUnmovedShare) return board->end(ConditionId::kWeightsStuck, -1);
  if (Condition* found = board->note(ConditionId::kWeightsStuck, -1, first_step_, facts.step)) {
    found->value = mean;
    found->count = judged;
  }
}

void TensorRules::judge_nonfinite(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board) {
  if (tensor->nonfinite == 0) {
    tensor->finite_step = facts.step;
    return;
  }
  const bool has_finite_gradient =
      facts.gradient == GradientState::kPresent && facts.nonfinite_gradient && *facts.nonfinite_gradient == 0;
  if (has_finite_gradient) note_nonfinite(facts.tensor, facts.step, tensor, board);
}

void TensorRules::note_nonfinite(const std::string& name, int64_t step, Tensor* tensor,
                                 ConditionBoard* board) const {
  if (tensor->finite_step < 0 || has_nonfinite_) return;
  Condition* found = board->note(ConditionId::kWeightsNonfinite, -1, tensor->finite_step + 1, step);
  if (found == nullptr) return;
  if (found->place.empty()) found->place = name;
  found->count += !std::exchange(tensor->is_nonfinite_noted, true);
}

// Each tensor is looked at once in an interval, so all have been since the last look at the same one.
void TensorRules::judge_clipping(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board) {
  if (interval_tensor_.empty()) interval_tensor_ = facts.tensor;
  if (interval_tensor_ == facts.tensor) {
    double square = 0;
    for (auto& [name, each] : tensors_) square += std::exchange(each.used_square, 0);
    const double used = std::sqrt(square), least = std::exchange(least_norm_, INFINITY);
    has_all_looks_ = has_all_looks_ || interval_step_ >= 0;
    const int64_t since = std::exchange(interval_step_, facts.step);
    const bool is_known = since >= 0 && used > 0 && std::isfinite(used) && std::isfinite(least);
    if (is_known && kClippedAway * used >= least) board->end(ConditionId::kClippedAway, -1);
    Condition* found = is_known && kClippedAway * used < least
                           ? board->note(ConditionId::kClippedAway, -1, since, facts.step)
                           : nullptr;
    if (found != nullptr) found->value = used, found->usual = least;
  }
  if (facts.gradient_rms && facts.elements)
    tensor->used_square = *facts.gradient_rms * *facts.gradient_rms * static_cast<double>(*facts.elements);
}

// Returns the median share of their first rms that the matrices have now; 1 if it is unknown.
double TensorRules::left_of_matrices() const {
  std::vector<double> shares;
  for (const auto& [name, each] : tensors_)
    if (each.is_matrix && each.first_rms > 0) shares.push_back(each.rms / each.first_rms);
  if (shares.empty()) return 1;
  const auto middle = shares.begin() + static_cast<std::ptrdiff_t>(shares.size() / 2);
  std::nth_element(shares.begin(), middle, shares.end());
  return *middle;
}

void TensorRules::judge_gain(const OptimizerFacts& facts, Tensor* tensor, ConditionBoard* board) {
  if (tensor->first_gain <= 0 || !facts.learning_rate || !facts.weight_decay) return;
  tensor->decay += *facts.learning_rate * *facts.weight_decay * static_cast<double>(tensor->steps);
  const bool was_decayed = tensor->is_decayed;
  const bool is_small =
      tensor->gain < kGainLeft * tensor->first_gain && 2 * tensor->decay >= std::log(1 / kGainLeft);
  tensor->is_decayed = is_small && tensor->gain < kGainLeft * left_of_matrices() * tensor->first_gain;
  if (tensor->is_decayed && !was_decayed) tensor->decayed_since = facts.step;
  if (!tensor->is_decayed && !was_decayed) return;
  Condition* found =
      report(ConditionId::kGainsDecay, &Tensor::is_decayed, &Tensor::decayed_since, facts.step, board);
  if (found != nullptr && tensor->is_decayed) found->value = tensor->gain / tensor->first_gain;
}

void TensorRules::judge_name(const OptimizerFacts& facts, const Tensor& tensor, ConditionBoard* board) const {
  constexpr auto kMostNew = 2;  // further new tensors are those of another model
  if (tensor.process == 0 || tensor.process != processes_ || !tensor.is_matrix) return;
  if (!had_all_looks_ || !has_all_looks_) return;
  if (std::count_if(tensors_.begin(), tensors_.end(),
                    [&](auto& each) { return each.second.process == processes_; }) > kMostNew)
    return;
  const std::string pattern = pattern_of(facts.tensor);
  std::vector<std::string> others;
  for (const auto& [name, each] : tensors_) {
    if (each.process == processes_) continue;
    if (pattern_of(name) == pattern) return;  // another copy of a module
    if (each.shape == tensor.shape) others.push_back(name);
  }
  Condition* found =
      others.empty() ? nullptr : board->note(ConditionId::kTiedApart, -1, facts.step, facts.step);
  if (found != nullptr && found->count++ == 0)
    found->place =
        facts.tensor + ", which has the shape of " + patterns_text(others) + ", is trained on its own";
}

void TensorRules::judge_all(int64_t step, ConditionBoard* board) {
  if (has_moved_) return board->end(ConditionId::kNothingTrained, -1);
  if (known_looks_ < kNothingLooks || step - first_step_ < kNoGradientSteps) return;
  if (Condition* found = board->note(ConditionId::kNothingTrained, -1, first_step_, step)) {
    found->count = tensors_.size();
    found->place = has_rate_ ? "" : "the learning rate is 0";
    if (!has_gradient_)
      found->place += std::string(found->place.empty() ? "" : ", ") + "no look found a gradient other than 0";
  }
}

}  // namespace foreshock
