// What a sampled step will cost, from what earlier ones have cost. Plain arithmetic, fixed state, fitted as
// the training goes; until something was measured, from figures of a slow machine.
#ifndef FORESHOCK_LIBMONITOR_COST_MODEL_H_
#define FORESHOCK_LIBMONITOR_COST_MODEL_H_

#include <cstdint>

namespace foreshock {

// One caller at a time. Seconds and bytes.
class CostModel {
 public:
  // Slices to come are of this size, until one was observed.
  void expect(uint64_t bytes) { bytes_ = static_cast<double>(bytes); }

  // A slice was taken. `cold`: into a slot that was never written before, whose pages the kernel had to map.
  void observe_slice(uint64_t bytes, bool cold, double seconds);

  // What slices have cost a device beside the host, each of so many the same.
  void observe_device(uint32_t slices, double seconds);

  // A step has ended: what was ours in it but for its slices.
  void observe_step(bool sampled, double seconds);

  // What the next slice will cost, and a sampled step beyond any other even with no slice in it.
  double slice_seconds(bool cold) const;
  double step_seconds() const;

  // How many slices a step may take that is to cost no more than `seconds`.
  uint32_t slices_within(double seconds, bool cold) const;

 private:
  double warm_seconds(double bytes) const;

  // Least squares of seconds over bytes, old observations fading; it begins with two that nobody made.
  static constexpr double kFading = 0.95;
  static constexpr double kFirstCall = 10e-6, kFirstPerByte = 0.3e-9, kFirstBytes = 1 << 20;
  double weight_ = 2, bytes_sum_ = kFirstBytes, bytes_squares_ = kFirstBytes * kFirstBytes;
  double seconds_sum_ = 2 * kFirstCall + kFirstPerByte * kFirstBytes;
  double products_sum_ = kFirstBytes * (kFirstCall + kFirstPerByte * kFirstBytes);
  double cold_per_byte_ = 0.5e-9;  // on top of the others
  double device_seconds_ = 0;      // of a slice, on top of what the host spends
  double bytes_ = 0;               // of the last slice

  // Medians: one stall must not keep the monitor from sampling for hours.
  static constexpr uint32_t kExtras = 5;
  double extra_[kExtras] = {};  // of the last sampled steps
  uint32_t extras_ = 0;
  double other_ = 0;  // running mean of steps that were not sampled
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_COST_MODEL_H_
