// Numbers of a step that are still on a device when it ends (late_steps.h), and the losses that they are
// told with.
#include "libmonitor/clocks.h"
#include "libmonitor/monitor.h"

namespace foreshock {
namespace {

// Of a training that is read on the host alone there is no such number, and nothing here is ever late.
constexpr uint64_t kHostPlace = 7;  // in the last bits, where those of devices tell which one
bool is_of_host(uint64_t number) { return number % 8 == kHostPlace; }
static_assert(kMostDevices <= kHostPlace);

// What one kernel keeps the trainer's stream. Nobody reads its times: that would take more than it does. An
// empty kernel takes 2 to 3 us from launch to launch, and two loads and stores over the bus one more.
constexpr uint64_t kScalarKernelNs = 4000;

}  // namespace

bool Monitor::fetch(const foreshock_tensor* values, size_t count_of, void* stream, uint32_t what,
                    uint64_t* numbers) {
  const bool is_loss = what == FORESHOCK_FETCH_LOSS;
  if (is_loss && loss_is_told_.load(std::memory_order_relaxed)) return false;
  for (size_t n = 0; n < count_of; ++n)
    if (!is_scalar_on_device(values[n]) || values[n].device_index != values[0].device_index) return false;
  const uint64_t begin = monotonic_ns();
  const Counting counting = g_guest.counting();
  segment::Coverage& coverage = *g_guest.writer().coverage();
  bump_shared(coverage.numbers_fetched, count_of);
  const bool has_room = numbers_asked_.load(std::memory_order_relaxed) + count_of <= kMostInAStep;
  const int why = has_room
                      ? devices_.send_scalars({values[0].device_index, stream}, values, count_of, numbers)
                      : FORESHOCK_SKIP_TOO_LARGE;
  const bool is_sent = why < 0;
  if (is_sent) numbers_asked_.fetch_add(count_of, std::memory_order_relaxed);
  for (size_t n = 0; n < count_of && !is_sent && is_loss; ++n)
    numbers[n] = (host_numbers_.fetch_add(1) + 1) * 8 + kHostPlace;
  if (!is_sent && !is_loss) bump_shared(coverage.numbers_skipped[why], count_of);
  counting.add(counting.block->step_ns, monotonic_ns() - begin + (is_sent ? kScalarKernelNs : 0));
  return is_sent || is_loss;
}

bool Monitor::find_late(uint64_t number, double* value) const {
  return (!is_of_host(number) && devices_.find_scalar(number, value)) || fetched_.find(number, value);
}

// -- told, in the order of the training --

void Monitor::observe_loss(double value, uint32_t source) {
  TryLock lock(loss_busy_);
  if (!lock) return;
  if (source == FORESHOCK_LOSS_REPORTED) loss_is_told_.store(true, std::memory_order_relaxed);
  if (!late_.has_ended() && late_.open().events == 0) return loss_.observe(value, source);
  late_.open().add(LateEvent{source, {value, 0}, {1, 0}, false});
}

void Monitor::observe_loss_sum(double sum, double weight) {
  TryLock lock(loss_busy_);
  if (!lock) return;
  if (!late_.has_ended() && late_.open().events == 0) return loss_.observe_sum(sum, weight);
  late_.open().add(LateEvent{LateEvent::kSum, {sum, 0}, {weight, 0}, false});
}

void Monitor::observe_fetched_loss(uint64_t number, uint64_t scale, uint32_t source) {
  if (source < FORESHOCK_LOSS_REPORTED || source > FORESHOCK_LOSS_LOGGED) return;
  TryLock lock(loss_busy_);
  if (lock) late_.open_with_room().add(LateEvent{source, {0, number}, {1, scale}, scale != 0});
}

void Monitor::observe_fetched_loss_sum(uint64_t sum, uint64_t weight) {
  TryLock lock(loss_busy_);
  if (lock) late_.open_with_room().add(LateEvent{LateEvent::kSum, {0, sum}, {0, weight}, false});
}

void Monitor::skip_step() {
  {
    TryLock lock(loss_busy_);
    if (lock && (late_.has_ended() || late_.open().events > 0)) {
      late_.open().add(LateEvent{LateEvent::kSkip, {1, 0}, {1, 0}, false});
    } else {
      skipped_steps_.fetch_add(1, std::memory_order_relaxed);
      if (lock) loss_.forget_step();
    }
  }
  // Its gradients are those of no step.
  if (TryLock lock(clock_busy_); lock) {
    layers_.begin_gradients();
    late_.open().begin_gradients();
  }
}

void Monitor::skip_step_if(uint64_t number) {
  TryLock lock(loss_busy_);
  if (number == 0 || !lock) return lose_skips();
  late_.open_with_room().add(LateEvent{LateEvent::kSkip, {0, number}, {1, 0}, false});
}

// -- when it has come --

// A loss that is not known whole is not known; what the trainer tells or logs is, all the same.
void Monitor::count_late(const LateStep& step, bool with_losses) {
  for (uint32_t n = 0; n < step.events; ++n) {
    const LateEvent& event = step.event[n];
    const bool is_there = event.value.number == 0;
    if (event.source == LateEvent::kSkip) {
      if (!is_there) lose_skips();
      if (!is_there || event.value.value == 0) continue;
      skipped_steps_.fetch_add(1, std::memory_order_relaxed);
      loss_.forget_step();  // it is that of no step
      continue;
    }
    if (event.source == LateEvent::kSum) {
      if (with_losses) loss_.observe_sum(event.value.value, event.scale.value);
      continue;
    }
    const bool is_certain = event.source == FORESHOCK_LOSS_REPORTED || event.source == FORESHOCK_LOSS_LOGGED;
    if (with_losses || (is_there && is_certain))
      loss_.observe(event.value.value * event.scale.value, event.source);
  }
}

void Monitor::complete(LateStep* step) {
  segment::StepRecord record = step->so_far;
  if (!step->has_events) lose_skips();
  count_late(*step, step->knows_losses() && step->knows_skips());
  if (loss_.take(&record.loss, &record.loss_source)) record.given |= FORESHOCK_GIVEN_LOSS;
  double norm = 0;
  if (step->knows_gradients() && layers_.publish_late(step->gradient, step->gradients, record.step, &norm) &&
      (record.given & FORESHOCK_GIVEN_GRADIENT_NORM) == 0) {
    record.gradient_norm = norm;
    record.given |= FORESHOCK_GIVEN_GRADIENT_NORM;
  }
  record.skipped_steps = skipped_steps_.load(std::memory_order_relaxed);
  if (skips_unseen_.load(std::memory_order_relaxed)) record.given |= segment::kSkipsUnseen;
  bump_shared(g_guest.writer().coverage()->numbers_late, step->missing([](uint64_t) { return true; }));
  g_guest.writer().complete_step(step->record, record);
}

// Completes steps in their order as far as what they wait for is there, or will not be. What the training has
// not fetched by the end of the next step, where no kernel could, is given up then.
void Monitor::settle_late(bool is_step_end) {
  const auto find = [this](uint64_t number, double* value) { return find_late(number, value); };
  while (late_.has_ended()) {
    LateStep& oldest = late_.oldest();
    const bool is_there = oldest.look(find);
    const bool will_come = oldest.missing([](uint64_t number) { return !is_of_host(number); }) > 0;
    if (!is_there && (!is_step_end || (will_come && !late_.is_full()))) return;
    complete(&oldest);
    late_.drop_oldest();
  }
}

// Of the step that ends now: false when it has to wait, for a number or for the steps before it.
bool Monitor::settle_open() {
  LateStep& open = late_.open();
  if (late_.has_ended()) return false;
  if (open.events == 0 && open.gradients == 0 && open.has_events && open.has_gradients) return true;
  if (!open.look([this](uint64_t number, double* value) { return find_late(number, value); })) return false;
  const bool knows = open.knows_losses();
  if (!open.has_events) lose_skips();
  count_late(open, knows);
  for (uint32_t n = 0; n < open.gradients && open.has_gradients; ++n)
    layers_.add_gradient_of(open.gradient[n].layer, open.gradient[n].square());
  open.clear();
  return true;
}

void Monitor::look_at_the_end() {
  {
    TryLock clock(clock_busy_);
    TryLock busy(loss_busy_);
    if (clock && busy) settle_late(false);
  }
  if (TryLock busy(weights_busy_); busy) collect_weights(g_guest.counting());
}

void Monitor::fetched(uint64_t number, double value) {
  TryLock clock(clock_busy_);
  TryLock busy(loss_busy_);
  if (!clock || !busy) return;
  // Several ranks may have made it their mean by then.
  if (!g_guest.has_other_ranks()) fetched_.add(number, value);
  late_.open().look([this](uint64_t wanted, double* found) { return find_late(wanted, found); });
  settle_late(false);
}

}  // namespace foreshock

// The last step of a training: what has come since. Its own memory alone is looked at.
__attribute__((destructor)) static void look_at_the_end() {
  using namespace foreshock;
  if ((g_guest.hot() & kHotArmed) == 0) return;
  g_monitor.look_at_the_end();
  g_guest.publish_exit();
}
