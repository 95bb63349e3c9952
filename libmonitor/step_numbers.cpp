// Chooses the source of the loss, keeps steps whose numbers are still on a device, and stores logged scalars.
// A root is the tensor on which backward() is called, an nll the output of a cross-entropy operation.
#include "libmonitor/step_numbers.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "segment/layout.h"

namespace foreshock {
namespace {

// Relative tolerance for equal losses. fp32 division and scaling round once, by 2^-24. 1e-5 also covers a
// loss that is computed in another order.
constexpr double kTolerance = 1e-5;
constexpr double kMostDivisor = 0.5 / kTolerance;  // from here on, every number is whole within the tolerance

bool is_whole(double x) { return std::fabs(x - std::nearbyint(x)) <= kTolerance * x; }

// Whether root = nll / k, or root = nll * 2^n / k with a gradient scaler (2^n > k); k is a whole number.
bool root_is_scaled_nll(double root, double nll) {
  if (root == 0 || nll == 0 || !(root / nll > 0)) return false;  // the signs differ, or the quotient is NaN
  const double ratio = nll / root;                               // k / 2^n
  if (ratio >= 1 - kTolerance) return is_whole(ratio) && ratio < kMostDivisor;
  int exponent = 0;
  const double mantissa = std::frexp(ratio, &exponent);  // in [0.5, 1)
  // k / 2^n has the mantissa of k, the number of accumulated micro-batches. k above 64 is not expected.
  for (int k = 1; k <= 64; ++k) {
    int shift = 0;
    if (std::fabs(std::frexp(k, &shift) - mantissa) <= kTolerance) return true;
  }
  return false;
}

}  // namespace

// The loss is the nll if there was exactly one since the last root and the root is this nll, scaled.
// Otherwise the root is the loss.
void LossTracker::choose_source(double root) {
  const bool nll_is_the_loss = nlls_since_root_ == 1 && root_is_scaled_nll(root, last_nll_);
  chosen_source_ = nll_is_the_loss ? FORESHOCK_LOSS_NLL : FORESHOCK_LOSS_BACKWARD_ROOT;
}

// Decides whether each root is a whole loss or a share of it. A step has k = roots.weight roots, one for each
// micro-batch. kSummed are the nlls that are summed over targets; its weight is the number of targets (or the
// sum of their weights). So summed.sum / summed.weight is the mean over all targets of the step. The sum of
// the roots is about this mean if they are shares, and k times this mean if each is a whole loss. The limit
// between both is sqrt(k) times the mean.
void LossTracker::choose_root_meaning() {
  const Mean &roots = mean_by_source_[FORESHOCK_LOSS_BACKWARD_ROOT], &summed = mean_by_source_[kSummed];
  // An nll that is not summed has targets that `summed` lacks, so the mean is then not over all targets.
  const bool has_unsummed_nll = mean_by_source_[FORESHOCK_LOSS_NLL].weight > 0;
  if (root_meaning_ != RootMeaning::kUnknown || roots.weight < 2 || has_unsummed_nll) return;
  const double ratio = roots.sum / (summed.sum / summed.weight);
  if (!(ratio > 0) || std::isinf(ratio)) return;  // NaN or infinite: summed nlls are missing or 0
  root_meaning_ = ratio < std::sqrt(roots.weight) ? RootMeaning::kShares : RootMeaning::kWhole;
}

// chosen_source_ is 0 until a source is chosen. mean_by_source_ has the mean of this step's values.
void LossTracker::observe(double value, uint32_t source) {
  if (source < FORESHOCK_LOSS_REPORTED || source > FORESHOCK_LOSS_LOGGED) return;
  if (source == FORESHOCK_LOSS_REPORTED) chosen_source_ = source;
  if (source == FORESHOCK_LOSS_NLL) {
    last_nll_ = value;
    ++nlls_since_root_;
  }
  if (source == FORESHOCK_LOSS_BACKWARD_ROOT) {
    // A value that is not finite cannot show which source is the loss, unless it is not scaled and differs
    // from the nll (label smoothing over logits of minus infinity).
    const bool is_shown = std::isfinite(value) || (root_is_unscaled_ && std::isfinite(last_nll_));
    if (chosen_source_ == 0 && is_shown) choose_source(value);
    root_is_unscaled_ = false;
    nlls_since_root_ = 0;
  }
  mean_by_source_[source].add(value, 1);
}

void LossTracker::observe_sum(double sum, double weight) {
  if (weight >= 0 && std::isfinite(weight)) mean_by_source_[kSummed].add(sum, weight);
}

// The training has divided the next root by `divisor`. divided_roots_.divisor is the divisor of all divided
// roots of this step; NaN: they have different divisors.
void LossTracker::observe_divisor(double divisor) {
  root_is_unscaled_ |= divisor == 1;
  if (!(divisor >= 2)) return;
  divided_roots_.divisor =
      divided_roots_.count == 0 || divided_roots_.divisor == divisor ? divisor : std::nan("");
  ++divided_roots_.count;
}

void LossTracker::follow_factor() {
  const Mean &roots = mean_by_source_[FORESHOCK_LOSS_BACKWARD_ROOT],
             &nll = mean_by_source_[FORESHOCK_LOSS_NLL], &summed = mean_by_source_[kSummed];
  const bool has_summed = summed.weight > 0;
  const bool is_one_each = has_summed ? nll.weight == 0 : nll.weight == roots.weight;
  const bool is_summed = roots.weight == 1 || roots.weight == summed_contributions_;
  const double mean = has_summed ? summed.sum / summed.weight : nll.sum / nll.weight;
  const double factor = is_one_each && is_summed && roots.weight > 0 ? roots.sum / mean : std::nan("");
  // The sum over all targets is a choice of the training (reduction="sum").
  const bool is_sum = has_summed && std::fabs(factor - summed.weight) <= kSameFactor * summed.weight;
  if (!std::isfinite(factor) || is_sum) {
    factor_steps_ = 0;
    return;
  }
  if (std::fabs(factor - factor_) > kSameFactor * std::fabs(factor_)) factor_ = factor, factor_steps_ = 0;
  ++factor_steps_;
}

std::optional<double> LossTracker::factor() const {
  if (factor_steps_ < kFactorSteps || std::fabs(factor_ - 1) <= kLeastFactor) return std::nullopt;
  return factor_;
}

void LossTracker::forget_step() {
  for (Mean& mean : mean_by_source_) mean = {};
  nlls_since_root_ = 0;
  divided_roots_ = {};
}

bool LossTracker::take(double* loss, uint32_t* source) {
  // If no finite root has chosen a source, the nlls are the loss of this step. They become the chosen source
  // only in a step without any root (autograd.grad may have been called instead of backward). In a step with
  // a root that is not finite, the choice is left to a later finite root, and summed nlls are not used.
  const bool has_root = mean_by_source_[FORESHOCK_LOSS_BACKWARD_ROOT].weight > 0;
  uint32_t used_source = chosen_source_;
  if (used_source == 0 && mean_by_source_[FORESHOCK_LOSS_NLL].weight > 0) used_source = FORESHOCK_LOSS_NLL;
  if (used_source == 0 && mean_by_source_[kSummed].weight > 0 && !has_root) used_source = kSummed;
  if (!has_root) chosen_source_ = used_source;
  if (used_source == 0) used_source = FORESHOCK_LOSS_LOGGED;
  choose_root_meaning();
  follow_factor();
  Mean mean = mean_by_source_[used_source];
  const bool all_divided =
      has_root && divided_roots_.count == mean_by_source_[FORESHOCK_LOSS_BACKWARD_ROOT].weight;
  // A divisor that equals the number of roots is the number of micro-batches. It is kept, because the last
  // step of an epoch may have fewer roots with the same divisor.
  if (all_divided && divided_roots_.divisor == divided_roots_.count)
    accumulation_divisor_ = divided_roots_.divisor;
  if (used_source == FORESHOCK_LOSS_BACKWARD_ROOT && has_root) {
    if (root_meaning_ == RootMeaning::kShares)
      mean.weight = 1;  // the sum of the roots
    else if (all_divided && divided_roots_.divisor == accumulation_divisor_)
      mean.weight /= accumulation_divisor_;  // the mean of the undivided roots
  }
  forget_step();
  if (mean.weight == 0) return false;
  *loss = mean.sum / mean.weight;
  *source = used_source == kSummed ? uint32_t{FORESHOCK_LOSS_NLL} : used_source;
  return true;
}

void PendingStep::clear() {
  record = 0;
  event_count = gradient_count = 0;
  has_all_events = has_all_gradients = true;
}

void PendingStep::add(const PendingEvent& added) {
  if (event_count == kMostEvents || event == nullptr)
    has_all_events = false;
  else
    event[event_count++] = added;
}

void PendingStep::add(const PendingGradient& added) {
  if (gradient_count == kMostGradients || gradient == nullptr)
    has_all_gradients = false;
  else
    gradient[gradient_count++] = added;
}

// `number` is not 0 while a value is still on a device. kSkip: a gradient scaler's decision on the step.
bool PendingStep::knows_losses() const {
  bool all = has_all_events;
  for (uint32_t n = 0; n < event_count; ++n) {
    const PendingEvent& e = event[n];
    // If the optimizer itself divides the gradients by the scale, the gradient scaler reports a scale of 1.
    // The true scale is then unknown.
    const bool lacks_scale = e.scale.number != 0 || (e.is_scaled && e.scale.value == 1);
    all &= e.source == PendingEvent::kSkip || (e.value.number == 0 && !lacks_scale);
  }
  return all;
}

bool PendingStep::knows_gradients() const {
  bool all = has_all_gradients;
  for (uint32_t n = 0; n < gradient_count; ++n) all &= gradient[n].norm.number == 0;
  return all;
}

bool PendingStep::knows_skips() const {
  bool all = has_all_events;
  for (uint32_t n = 0; n < event_count; ++n)
    all &= event[n].source != PendingEvent::kSkip || event[n].value.number == 0;
  return all;
}

void PendingSteps::reserve() {
  constexpr size_t kEvents = sizeof(PendingEvent) * PendingStep::kMostEvents;
  constexpr size_t kGradients = sizeof(PendingGradient) * PendingStep::kMostGradients;
  static_assert(alignof(PendingGradient) <= alignof(PendingEvent) && kEvents % alignof(PendingGradient) == 0);
  if (open().event != nullptr || !memory_.reserve((kMost + 1) * (kEvents + kGradients))) return;
  char* memory = memory_.data();
  for (PendingStep& step : steps_) {
    step.event = reinterpret_cast<PendingEvent*>(memory);
    step.gradient = reinterpret_cast<PendingGradient*>(memory + kEvents);
    memory += kEvents + kGradients;
  }
}

// steps_ is a ring. The open step, which has not ended, comes after the count_ ended steps.
void PendingSteps::end_step(uint64_t number, const segment::StepRecord& so_far) {
  open().record = number;
  open().so_far = so_far;
  ++count_;  // from here on, open() returns another step
  open().clear();
}

void PendingSteps::drop_oldest() {
  first_ = (first_ + 1) % (kMost + 1);
  --count_;
}

void PendingSteps::forget() {
  first_ = count_ = 0;
  open().clear();
}

bool TrainerReadbacks::find(uint64_t number, double* value) const {
  for (const PendingNumber& readback : found_) {
    if (readback.number != number) continue;
    *value = readback.value;
    return true;
  }
  return false;
}

// `names`: the segment's table, which the agent reads.
void Scalars::attach(segment::ScalarName* names) {
  names_ = names;
  known_ = given_bits_ = 0;
}

bool Scalars::is_taken(const char* cut) const {
  for (uint32_t n = 0; n < known_; ++n)
    if (std::strcmp(cut_[n], cut) == 0) return true;
  return false;
}

// Returns the index of a name (compared by hash), which is added if it is new, or -1 if the table is full.
// A name is cut to the segment's field. If the table already has this text, the new one ends in "~2", ...
int Scalars::index_of(const char* name) {
  const uint64_t hash = fnv1a(name);
  for (uint32_t n = 0; n < known_; ++n)
    if (hash_[n] == hash) return static_cast<int>(n);
  if (known_ == segment::kMaxScalars) return -1;
  char cut[sizeof(segment::ScalarName::name)] = {};
  std::strncpy(cut, name, sizeof cut - 1);
  for (uint32_t number = 2; is_taken(cut); ++number) {
    char suffix[8];
    const int length = std::snprintf(suffix, sizeof suffix, "~%u", number);
    const size_t begin = std::min(std::strlen(name), sizeof cut - 1 - static_cast<size_t>(length));
    std::memcpy(cut + begin, suffix, static_cast<size_t>(length) + 1);
  }
  hash_[known_] = hash;
  segment::ScalarName& added = names_[known_];
  std::memcpy(cut_[known_], cut, sizeof cut);
  std::memcpy(added.name, cut, sizeof cut);
  std::atomic_ref<uint32_t>(added.ready).store(1, std::memory_order_release);
  return static_cast<int>(known_++);
}

bool Scalars::observe(const char* name, double value, int64_t step) {
  if (names_ == nullptr || name == nullptr || *name == '\0') return false;
  const int index = index_of(name);
  if (index < 0) return false;
  value_[index] = value;
  step_[index] = std::max<int64_t>(step, -1);  // -1: none
  given_bits_ |= 1u << index;
  return true;
}

void Scalars::take(segment::StepRecord* record) {
  record->scalars_given = given_bits_;
  if (given_bits_ == 0) return;
  std::copy_n(value_, segment::kMaxScalars, record->scalars);
  std::copy_n(step_, segment::kMaxScalars, record->scalar_step);
  given_bits_ = 0;
}

namespace {

// Known names in the form that logged_as() compares, with the trainers that use them.
constexpr std::string_view kLosses[] = {
    "loss",       // Hugging Face
    "loss step",  // Lightning, self.log(on_step=True)
    "loss train",
    "loss train total",              // Composer
    "lm loss",                       // Megatron-LM
    "samples train loss",            // DeepSpeed
    "loss metrics global avg loss",  // torchtitan
};
constexpr std::string_view kNorms[] = {
    "grad norm",  // Hugging Face, Megatron-LM, torchtitan: result of clip_grad_norm_
    "gradient norm",
};
constexpr std::string_view kTrainingPrefixes[] = {"train ", "training "};

constexpr bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
constexpr bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || is_upper(c); }

}  // namespace

// Compares the lower-case words of the name without a leading "train" or "training"; one space between words.
Logged logged_as(const char* name) {
  if (name == nullptr) return Logged::kOther;
  char words[48];
  size_t length = 0;
  for (; *name != '\0'; ++name) {
    if (length == sizeof words) return Logged::kOther;  // the name is longer than all names above
    if (is_word(*name))
      words[length++] = static_cast<char>(is_upper(*name) ? *name - 'A' + 'a' : *name);
    else if (length > 0 && words[length - 1] != ' ')
      words[length++] = ' ';
  }
  std::string_view plain(words, length);
  if (plain.ends_with(' ')) plain.remove_suffix(1);
  for (const std::string_view prefix : kTrainingPrefixes)
    if (plain.starts_with(prefix)) plain.remove_prefix(prefix.size());
  for (const std::string_view loss : kLosses)
    if (plain == loss) return Logged::kLoss;
  for (const std::string_view norm : kNorms)
    if (plain == norm) return Logged::kGradientNorm;
  return Logged::kOther;
}

}  // namespace foreshock
