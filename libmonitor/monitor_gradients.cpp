// The gradients of a step, as the trainer tells them: norms that it has taken itself, or values to be summed
// here or, by kernels on its own stream, on the device that they lie on.
#include <cmath>

#include "kernels/dtype.h"
#include "kernels/sums.h"
#include "libmonitor/clocks.h"
#include "libmonitor/element.h"
#include "libmonitor/monitor.h"

namespace foreshock {
namespace {

// Trainers that were built before a field was there do not have it.
uint64_t norm_of(const foreshock_gradient& gradient) {
  constexpr size_t kEnd = offsetof(foreshock_gradient, norm_fetched) + sizeof gradient.norm_fetched;
  return gradient.size >= kEnd ? gradient.norm_fetched : 0;
}
void* stream_of(const foreshock_gradient& gradient) {
  constexpr size_t kEnd = offsetof(foreshock_gradient, stream) + sizeof gradient.stream;
  return gradient.size >= kEnd ? gradient.stream : nullptr;
}

bool is_any(const foreshock_gradient* gradients, size_t count, const auto& is) {
  for (size_t n = 0; n < count; ++n)
    if (is(element(gradients, n))) return true;
  return false;
}

bool lies_on_device(const foreshock_gradient& gradient) {
  return gradient.values.data != nullptr && gradient.values.device_type == FORESHOCK_DEVICE_CUDA;
}

// The values that kernels are to read: all of one device and one stream, or none.
struct Wanted {
  DeviceStream at = {-1, nullptr};
  uint64_t bytes = 0;
  size_t tensors = 0;
  bool is_whole = true;

  void add(const foreshock_gradient& gradient) {
    const foreshock_tensor& values = gradient.values;
    if (values.data == nullptr) return;
    if (tensors++ == 0) at = {values.device_index, stream_of(gradient)};
    is_whole &= is_gradient_on_device(gradient) && values.device_index == at.device_index &&
                stream_of(gradient) == at.handle;
    if (is_whole) bytes += static_cast<uint64_t>(values.shape[0]) * size_of(static_cast<DType>(values.dtype));
  }
  // Launches beside those that read, between which the device's clock is looked at.
  uint64_t kernels() const { return 4 + (tensors + kMostScalars - 1) / kMostScalars; }
};

}  // namespace

void Monitor::observe_gradients(const foreshock_gradient* gradients, size_t count_of) {
  const uint64_t begin = monotonic_ns();
  wake(0);
  if ((g_guest.hot() & kHotArmed) == 0) return;
  TryLock lock(clock_busy_);
  if (!lock) return;
  // Afresh: a trainer may take several steps before it tells one, or leave one out and try it again.
  layers_.begin_gradients();
  late_.open().begin_gradients();
  uint64_t on_device_ns = 0;
  if (is_any(gradients, count_of, [](const auto& one) { return norm_of(one) != 0; })) {
    for (size_t n = 0; n < count_of; ++n) {
      const foreshock_gradient& one = element(gradients, n);
      const LateNumber norm = {std::sqrt(one.sum_of_squares), norm_of(one)};
      late_.open_with_room().add(LateGradient{layers_.find(one.identity), false, norm});
    }
  } else if (is_any(gradients, count_of, lies_on_device)) {
    on_device_ns = send_gradients(gradients, count_of);
  } else {
    for (size_t n = 0; n < count_of; ++n) add_gradient(element(gradients, n));
  }
  const Counting counting = g_guest.counting();
  counting.add(counting.block->step_ns, monotonic_ns() - begin + on_device_ns);
}

// A pass over the gradients is what a step without attention calls is sampled for.
void Monitor::sample_gradients() {
  step_was_sampled_ |= (g_guest.hot() & kHotTickPending) != 0 && falls_due(ending_step());
}

void Monitor::add_gradient(const foreshock_gradient& gradient) {
  const foreshock_tensor& values = gradient.values;
  double squares = gradient.sum_of_squares;
  if (values.data != nullptr) {
    if (values.dims != 1 || values.stride[0] != 1 || values.device_type != FORESHOCK_DEVICE_CPU) return;
    squares =
        sum_of_squares(values.data, static_cast<DType>(values.dtype), static_cast<size_t>(values.shape[0]));
    sample_gradients();
  }
  layers_.add_gradient(gradient.identity, squares);
}

// Returns what it is charged for on the device, ns. What kernels will take is asked of the budget before they
// are launched: a step that it does not pay for is left out, as one that is not sampled.
uint64_t Monitor::send_gradients(const foreshock_gradient* gradients, size_t count_of) {
  Wanted wanted;
  for (size_t n = 0; n < count_of; ++n) wanted.add(element(gradients, n));
  const double needed = static_cast<double>(gradient_cost_.ask(wanted.bytes, wanted.kernels())) * 1e-9;
  if (!budget_.is_unlimited() && budget_.balance_seconds() < needed) return 0;
  segment::Coverage& coverage = *g_guest.writer().coverage();
  bump_shared(coverage.numbers_fetched, wanted.tensors);
  const size_t numbers = wanted.tensors + DeviceGradients::kTimes;
  SentGradients sent;
  int why = -1;
  if (!wanted.is_whole)
    why = FORESHOCK_SKIP_LAYOUT;
  else if (numbers_asked_.load(std::memory_order_relaxed) + numbers > kMostInAStep)
    why = FORESHOCK_SKIP_TOO_LARGE;
  else
    why = devices_.send_gradients(wanted.at, gradients, count_of, &sent);
  if (why >= 0) {
    bump_shared(coverage.numbers_skipped[why], wanted.tensors);
    return 0;
  }
  numbers_asked_.fetch_add(numbers, std::memory_order_relaxed);
  sample_gradients();
  uint64_t number = sent.first;
  for (size_t n = 0; n < count_of; ++n) {
    const foreshock_gradient& one = element(gradients, n);
    LateNumber squares = {one.sum_of_squares, 0};
    if (one.values.data != nullptr) squares = {0, std::exchange(number, number + sent.stride)};
    late_.open_with_room().add(LateGradient{layers_.find(one.identity), true, squares});
  }
  const uint64_t charged = gradient_cost_.sent(sent);
  gradients_ns_ += charged;
  return charged;
}

}  // namespace foreshock
