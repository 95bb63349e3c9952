#include "detect/circumstances.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace foreshock {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string change(const Circumstance& change) { return number(change.from) + " to " + number(change.to); }

double median(std::deque<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::string text_of(const Circumstance& circumstance, int64_t onset) {
  const int64_t steps = onset - circumstance.step;
  const std::string when = steps == 0   ? "in the step in which "
                           : steps == 1 ? "one step after "
                                        : std::to_string(steps) + " steps after ";
  switch (circumstance.kind) {
    case CircumstanceKind::kLearningRate:
      return when + "the learning rate went from " + change(circumstance);
    case CircumstanceKind::kGradientNorm:
      return when + "the gradient norm went from " + change(circumstance);
    case CircumstanceKind::kSkippedSteps:
      return when + "the gradient scaler began to skip steps (" + number(circumstance.to) + " skipped)";
    case CircumstanceKind::kLoneLoss:
      return when + "one loss stood out alone: " + number(circumstance.to) +
             ", the losses before it are near " + number(circumstance.from);
    case CircumstanceKind::kWentBack:
      return when + "the training went back to step " + std::to_string(circumstance.step);
  }
  return "";
}

void StepTrail::add(int64_t step, const StepNumbers& numbers) {
  steps_.push_back({step, numbers});
  if (steps_.size() > kMostSteps) steps_.pop_front();
}

void StepTrail::go_back(int64_t from, int64_t to) {
  steps_.clear();
  went_back_ = {CircumstanceKind::kWentBack, to, static_cast<double>(from), static_cast<double>(to)};
}

std::vector<Circumstance> StepTrail::before(int64_t onset) const {
  // The trainer chooses its step numbers, so the difference is computed without overflow.
  const int64_t first =
      onset < INT64_MIN + static_cast<int64_t>(kRecent) ? INT64_MIN : onset - static_cast<int64_t>(kRecent);
  std::vector<Circumstance> found;
  std::optional<Circumstance> rate, norm, skipped, lone_loss, outlier;
  std::optional<double> last_rate;
  std::optional<uint64_t> last_skipped;
  std::deque<double> norms;  // the last kNorms finite norms
  Window<kLoneWindow> losses;
  for (const auto& [step, numbers] : steps_) {
    if (step > onset) break;
    if (const std::optional<double>& now = numbers.learning_rate; now && std::isfinite(*now)) {
      // The last jump counts: it made the rate at the onset. A rate that rises from 0 begins a warm-up.
      if (step >= first && last_rate && *last_rate > 0 && *now >= kRateFactor * *last_rate)
        rate = {CircumstanceKind::kLearningRate, step, *last_rate, *now};
      last_rate = now;
    }
    if (const std::optional<uint64_t>& now = numbers.skipped_steps) {
      if (step >= first && last_skipped && *now > *last_skipped) {
        if (!skipped) skipped = {CircumstanceKind::kSkippedSteps, step, 0, 0};
        skipped->to += static_cast<double>(*now - *last_skipped);
      }
      last_skipped = now;
    }
    if (const std::optional<double>& now = numbers.loss; now && std::isfinite(*now)) {
      const std::optional<double> usual = usual_beside(*now, losses);
      if (outlier && !usual && step < onset) lone_loss = outlier;
      outlier.reset();
      if (!usual)
        losses.add(*now);
      else if (step >= first)
        outlier = {CircumstanceKind::kLoneLoss, step, *usual, *now};
    }
    const std::optional<double>& now = numbers.gradient_norm;
    if (!now || !std::isfinite(*now) || step == onset) continue;
    // The first jump counts: the norms after it follow from it.
    if (!norm && step >= first && norms.size() == kNorms && *now > kNormFactor * median(norms))
      norm = {CircumstanceKind::kGradientNorm, step, median(norms), *now};
    norms.push_back(*now);
    if (norms.size() > kNorms) norms.pop_front();
  }
  // In this order at one step: the batch of the loss explains the norm.
  for (const auto& each : {rate, lone_loss, norm, skipped})
    if (each) found.push_back(*each);
  if (went_back_ && went_back_->step >= first && went_back_->step <= onset) found.push_back(*went_back_);
  std::stable_sort(found.begin(), found.end(),
                   [](const Circumstance& a, const Circumstance& b) { return a.step < b.step; });
  return found;
}

}  // namespace foreshock
