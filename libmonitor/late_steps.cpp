#include "libmonitor/late_steps.h"

namespace foreshock {

void LateStep::clear() {
  record = 0;
  events = gradients = 0;
  has_events = has_gradients = true;
  is_late = false;
}

void LateStep::add(const LateEvent& added) {
  is_late |= added.value.number != 0 || added.scale.number != 0;
  if (events == kMostEvents || event == nullptr)
    has_events = false;
  else
    event[events++] = added;
}

void LateStep::add(const LateGradient& added) {
  is_late |= added.norm.number != 0;
  if (gradients == kMostGradients || gradient == nullptr)
    has_gradients = false;
  else
    gradient[gradients++] = added;
}

bool LateStep::knows_losses() const {
  bool all = has_events;
  for (uint32_t n = 0; n < events; ++n) {
    const LateEvent& one = event[n];
    const bool has_scale = one.scale.number == 0 && !(one.is_scaled && one.scale.value == 1);
    all &= one.source == LateEvent::kSkip || (one.value.number == 0 && has_scale);
  }
  return all;
}

bool LateStep::knows_gradients() const {
  bool all = has_gradients;
  for (uint32_t n = 0; n < gradients; ++n) all &= gradient[n].norm.number == 0;
  return all;
}

bool LateStep::knows_skips() const {
  bool all = has_events;
  for (uint32_t n = 0; n < events; ++n)
    all &= event[n].source != LateEvent::kSkip || event[n].value.number == 0;
  return all;
}

void LateSteps::reserve() {
  constexpr size_t kEvents = sizeof(LateEvent) * LateStep::kMostEvents;
  constexpr size_t kGradients = sizeof(LateGradient) * LateStep::kMostGradients;
  static_assert(alignof(LateGradient) <= alignof(LateEvent) && kEvents % alignof(LateGradient) == 0);
  if (open().event != nullptr || !room_.reserve((kMost + 1) * (kEvents + kGradients))) return;
  char* at = room_.data();
  for (LateStep& step : steps_) {
    step.event = reinterpret_cast<LateEvent*>(at);
    step.gradient = reinterpret_cast<LateGradient*>(at + kEvents);
    at += kEvents + kGradients;
  }
}

void LateSteps::end_step(uint64_t number, const segment::StepRecord& so_far) {
  open().record = number;
  open().so_far = so_far;
  ++count_;
  open().clear();
}

void LateSteps::drop_oldest() {
  first_ = (first_ + 1) % (kMost + 1);
  --count_;
}

void LateSteps::forget() {
  first_ = count_ = 0;
  open().clear();
}

bool FetchedByTraining::find(uint64_t number, double* value) const {
  for (const LateNumber& one : found_) {
    if (one.number != number) continue;
    *value = one.value;
    return true;
  }
  return false;
}

}  // namespace foreshock
