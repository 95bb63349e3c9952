// Rations the trainer's time among all work of the monitor. The Ledger earns, forecasts, charges and settles:
// - Every step, sampled or not, earns --max-slowdown times its length (without the monitor's time).
// - The cost of work is forecast from earlier work of its kind (kForecastRules).
// - The monitor's time in a step is charged at its end. The time of the agent and of kernels for gradients is
//   not known then: its forecast is charged, and settled when the measured time arrives.
// - The savings must pay for slices and for sums of gradients, a share of its own for weight tensors. A grant
//   pays for the first sampled steps (FirstLook). Counting calls, records of steps, and the agent's work on
//   them are never refused, but are paid first.
// The classes do arithmetic on measured times and counts; they read no clock. One caller at a time.
#ifndef FORESHOCK_LIBMONITOR_LEDGER_H_
#define FORESHOCK_LIBMONITOR_LEDGER_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "segment/layout.h"

namespace foreshock {

// How the cost of a kind of work is forecast: a running mean of seconds per unit. An observation counts as at
// most most_times_expected times the expected cost, since a stall says nothing about later costs, or as much
// as the observation before, if is_repeated_believed.
struct ForecastRule {
  double first = 0;         // assumed seconds per unit; 0: unknown
  double first_weight = 0;  // units of this assumption; 0: the first observation replaces it
  double kept = 0.8;        // each observation multiplies the weight of the older ones by this
  double most_times_expected = 4;
  double fixed = 0;  // part of the expected cost that does not depend on the units, in seconds
  bool is_repeated_believed = false;
  bool falls_at_once = false;  // a cost far below the mean replaces it: the set-up or a stall has raised it
};
inline constexpr ForecastRule kBareStep{.falls_at_once = true};  // a step without samples and weights
// A sampled step, without its slices.
inline constexpr ForecastRule kSampledStep{.most_times_expected = 1, .is_repeated_believed = true};
inline constexpr ForecastRule kDeviceSlice{};  // in addition to the host time
inline constexpr ForecastRule kAgentSlice{};   // of query rows, and of key positions that come with it
inline constexpr ForecastRule kAgentStep{};    // all other work of the agent, but that on weights
// A byte of a slot that was never used, in addition to that of other slots.
inline constexpr ForecastRule kFirstUseByte{.first = 0.5e-9};
// A byte of gradients that kernels sum on a device. Training GPUs read at least 200 bytes per ns.
inline constexpr ForecastRule kGradientByte{.first = 1e-9 / 200};
// A byte of weight tensors. A preempted measurement may take a hundred times the usual time.
inline constexpr ForecastRule kWeightByte{.first = 2.5e-10,
                                          .first_weight = 1e6,
                                          .kept = 1 - 1.0 / 64,
                                          .most_times_expected = 8,
                                          .fixed = 5e-5,
                                          .is_repeated_believed = true};

// Expects the cost of one kind of work. Work may be charged when it begins, by this forecast, and settled
// when it was measured.
class Forecast {
 public:
  constexpr explicit Forecast(const ForecastRule& rule)  // `rule` must outlive it
      : rule_(&rule), per_unit_(rule.first), weight_(rule.first_weight) {}
  double per_unit() const { return per_unit_; }       // in seconds; 0: unknown
  void observe(double units, double seconds);         // `units` units took `seconds`
  double charge(double units, bool is_free = false);  // returns the charge; is_free: 0, since others pay
  double settle(double units, double seconds);        // observes; returns what was charged for `units` units

 private:
  const ForecastRule* rule_;
  double per_unit_, weight_;  // the mean, and the units in it; those of older observations count less
  double last_per_unit_ = 0;  // of the last observation, not reduced
  double unsettled_ = 0, unsettled_units_ = 0;  // charged and not settled: seconds, units
};

// Expects the host time of a slice from the sizes and times of earlier slices. Until the first slice it
// assumes a slow machine.
class SliceCost {
 public:
  // Sets the size that is expected until the first slice is observed.
  void expect(uint64_t bytes) { bytes_ = static_cast<double>(bytes); }
  // A slice was copied. The first use of a slot costs more, since the kernel has to map its pages.
  void observe(uint64_t bytes, bool first_use_of_slot, double seconds);
  // The expected cost of the next slice. It is expected to be as large as the last one.
  double seconds(bool first_use_of_slot) const {
    return reused_seconds(bytes_) + (first_use_of_slot ? first_use_byte_.per_unit() * bytes_ : 0);
  }

 private:
  double reused_seconds(double bytes) const;  // with a slot that was used before

  // Sums for a least-squares line of seconds over bytes. Each new observation multiplies the older sums by
  // kFading. The sums begin with two assumed observations: an empty slice and one of kFirstBytes.
  static constexpr double kFading = 0.95;
  static constexpr double kFirstSliceSeconds = 10e-6, kFirstSecondsPerByte = 0.3e-9, kFirstBytes = 1 << 20;
  double count_ = 2, bytes_sum_ = kFirstBytes, bytes_squares_ = kFirstBytes * kFirstBytes;
  double seconds_sum_ = 2 * kFirstSliceSeconds + kFirstSecondsPerByte * kFirstBytes;
  double products_sum_ = kFirstBytes * (kFirstSliceSeconds + kFirstSecondsPerByte * kFirstBytes);
  Forecast first_use_byte_{kFirstUseByte};
  double bytes_ = 0;  // size of the last slice
};

// A balance in seconds, negative if there is debt. Each second of training earns `rate` seconds. Savings are
// limited, so that an hour of low costs does not pay for an expensive minute. Debt is limited, so that one
// stall (many page faults, a stopped process) does not stop the work for hours.
struct Account {
  double rate = 0, balance = 0;
  double step_seconds = 0;  // running mean of a step's length

  void observe(double seconds) { step_seconds += (step_seconds == 0 ? 1 : 0.1) * (seconds - step_seconds); }
  double earnings(uint64_t steps) const { return rate * static_cast<double>(steps) * step_seconds; }
  void settle(double seconds, double cost, double most_owed, double most_saved) {
    balance = std::clamp(balance + rate * seconds - cost, -most_owed, most_saved);
  }
};

// The first look: the first steps of a process are sampled regardless of the interval, so that a short run is
// judged too. A fixed grant of seconds pays for the monitor's time in these steps. The first look ends as
// soon as kSampledSteps steps were sampled; or at least kSlices slices, and two per call of a step, were
// copied; or kMostSteps steps have ended; or the grant is spent.
class FirstLook {
 public:
  static constexpr int kSampledSteps = 8, kMostSteps = 32;
  static constexpr uint64_t kSlices = 64;  // limits the agent's work; a verdict needs 8 slices of each pass

  FirstLook() = default;
  explicit FirstLook(bool is_wanted) : sampled_steps_left_(is_wanted ? kSampledSteps : 0) {}
  bool is_open() const { return sampled_steps_left_ > 0 && seconds_left_ > 0; }
  // The unspent grant, in seconds; 0 when the first look has ended.
  double seconds_left() const { return is_open() ? seconds_left_ : 0; }
  // Ends a step with `calls` attention calls and `slices` slices. Returns the seconds that the grant pays.
  double end_step(bool was_sampled, uint64_t calls, uint64_t slices, double cost_seconds);

 private:
  int sampled_steps_left_ = 0, ended_steps_ = 0;
  uint64_t slices_ = 0;
  double seconds_left_ = segment::kFirstLookSeconds;
};

// Charges the agent's work. The agent, another process on the rank's cores, works on each slice too. Without
// a forecast, too many slices would be copied before its first report.
class AgentForecast {
 public:
  // The agent's CPU time since the previous call of end_step(), divided by the number of the rank's cores.
  struct Report {
    double seconds = 0;  // total, without slices of the first look, for which the grant pays
    // On slices, also those of the first look, since they too show what a slice costs.
    double slices_seconds = 0;
    uint64_t slices = 0;         // slices of query rows in slices_seconds
    double tensors_seconds = 0;  // on weight tensors
  };

  // Ends a step that copied `slices` slices of query rows; `is_first_look`: the grant of the first look pays
  // for them. Returns the seconds to charge; negative: too much was charged before.
  double end_step(uint64_t slices, bool is_first_look, const Report& report);
  double slice_seconds() const { return slice_.per_unit(); }
  double rest_seconds() const { return step_.per_unit(); }  // in a step, without slices and weight tensors

 private:
  Forecast slice_{kAgentSlice}, step_{kAgentStep};
  uint32_t steps_ = 0;  // since the last report
};

// Charges the time that summing a step's gradients takes on the trainer's stream. A shortfall is charged when
// the device's times have arrived, an excess is deducted from later charges.
class GradientCost {
 public:
  // Stores the work of a step: kernels that read `bytes` bytes, and `kernels` further kernels. The further
  // kernels run outside of the interval between the device's two times, so their time is never measured.
  // Returns the charge to expect, in ns. If the kernels are launched, the caller must charge the result of
  // record_launch().
  uint64_t expect_work(uint64_t bytes, uint64_t kernels) {
    bytes_ = bytes;
    kernels_ = kernels;
    return payable(owed_ns_ + forecast_ns());
  }
  // Returns the charge to expect, in seconds, for repeating the work of the last expect_work().
  double expected_seconds() const { return static_cast<double>(payable(owed_ns_ + forecast_ns())) * 1e-9; }

  // Records a launch of the kernels of the last expect_work(). Its begin and end (ns) arrive later, under the
  // numbers `begin` and `end` (SentGradients). Returns the charge in ns.
  uint64_t record_launch(uint64_t begin, uint64_t end);

  // Reads the times that have arrived, with find(number, &value), a call of ScalarReadback::find(). A time is
  // an integer, whose bits are sent as a double.
  void collect_times(const auto& find) {
    if (launched_ == 0) return;
    for (Launch& launch : launches_) {
      double begin = 0, end = 0;
      if (launch.bytes == 0 || !find(launch.begin, &begin) || !find(launch.end, &end)) continue;
      settle(launch.bytes, std::bit_cast<uint64_t>(begin), std::bit_cast<uint64_t>(end));
      launch.bytes = 0;
    }
  }
  uint64_t take_owed();  // returns the shortfall in ns that is not charged yet, and counts it as charged

 private:
  struct Launch {
    uint64_t begin, end;  // numbers of the two times
    uint64_t bytes;       // 0: the times have been read
  };
  static uint64_t payable(double ns) { return static_cast<uint64_t>(std::max(ns, 0.0) + 0.5); }
  double forecast_ns() const;
  void settle(uint64_t bytes, uint64_t begin_ns, uint64_t end_ns);
  static constexpr uint32_t kMostPending = 8;  // steps whose times can be pending; older ones are ignored

  Forecast byte_{kGradientByte};
  double owed_ns_ = 0;                // by how much earlier charges were too small; negative: too large
  uint64_t bytes_ = 0, kernels_ = 0;  // of the last expect_work()
  Launch launches_[kMostPending] = {};
  uint32_t launched_ = 0;  // number of launches so far
};

// The weight tensors of a step.
struct MeasuredWeights {
  uint64_t bytes = 0;
  uint64_t all_bytes = 0;       // of all tensors; 0: unknown, no interval is chosen
  bool keeps_interval = false;  // if the share does not pay for the interval, tensors are skipped instead
};

// What the ledger allows for weight tensors until the end of the next step.
struct WeightAllowance {
  uint64_t interval = 64;  // steps between two measurements of a tensor
  bool measurements = false;
  bool checksums = false;  // a tensor may be read just for its checksum, which is compared between replicas
};

class Ledger {
 public:
  // max_slowdown 1: no limit; 0: no samples and no weights. `weights_interval` 0: the shortest interval that
  // the share of weights pays for.
  explicit Ledger(double max_slowdown, uint64_t weights_interval = 0, bool has_first_look = false,
                  bool samples_ignore_cost = false);
  constexpr Ledger() = default;  // allows nothing

  // Sets the earnings to `times` times max_slowdown; `times` is above 1 in a burst (denser sampling after a
  // warning). A max_slowdown below 100 % is raised to at most 99 %, since 100 % means no limit.
  void set_rate(double times);

  // A step that has ended, without the set-up of devices. Times are in seconds of the trainer.
  struct Step {
    double seconds = 0, cost_seconds = 0;  // length of the step; the monitor's time in it
    double rest_seconds = 0;               // of cost_seconds: all but slices, device gradients and launches
    double weights_seconds = 0;            // of rest_seconds: measured time for weights
    bool has_described = false;  // the trainer has described weights; the time for this is not measured
    bool was_sampled = false;
    uint64_t calls = 0, slices = 0;
  };
  // `interval`: the sampling interval, without bursts.
  void end_step(Step step, uint64_t interval, const AgentForecast::Report& agent = {},
                const MeasuredWeights& weights = {});

  // Sets the expected host time of the next slice.
  void expect_slice(double seconds) { host_slice_seconds_ = seconds; }
  // `slices` slices took `seconds` of device time together, in addition to the host time.
  void observe_device(uint32_t slices, double seconds) { device_slice_.observe(slices, seconds); }

  // The expected costs of the next slice in the trainer, of a sampled step in addition to its slices, and of
  // a step without samples and weights (0: none seen yet).
  double slice_seconds() const { return host_slice_seconds_ + device_slice_.per_unit(); }
  double sampled_step_extra_seconds() const {
    return std::max(sampled_step_.per_unit() - bare_seconds(), 0.0);
  }
  double bare_seconds() const { return bare_step_.per_unit(); }
  GradientCost& gradients() { return gradients_; }

  bool is_first_look() const { return first_look_.is_open(); }
  // Whether a step may be sampled: always without limit and in the first look, else if nothing is owed.
  bool pays_for_sample() const {
    return ignores_cost() || is_first_look() || (max_slowdown_ > 0 && balance() >= 0);
  }
  // The slices of rows that the step may take, and whether it may take key positions too: a quarter of the
  // payable time must suffice for a slice of rows of every call.
  struct Slices {
    uint32_t rows;
    bool columns;
  };
  Slices plan_slices(uint64_t calls) const;
  // Whether the savings pay for `seconds` of other work.
  bool pays_for(double seconds) const { return is_unlimited() || balance() >= seconds; }
  // A checksum costs a fraction of a measurement, so it may be read with twice the debt.
  WeightAllowance weights() const { return {weights_interval_, pays_for_weights(1), pays_for_weights(2)}; }

  bool is_unlimited() const { return max_slowdown_ >= 1; }
  double balance() const { return savings_.balance; }  // negative: debt
  // Becomes true when the debt exceeds the earnings of 256 steps (fewer with an interval below
  // kOverdraftInterval), and false when the debt is paid off. Samples stop as soon as there is a debt, so
  // only other costs can make it so large. Then weights must wait too.
  bool is_overdrawn() const { return !is_unlimited() && is_overdrawn_; }

  static constexpr uint64_t kFirstWeightsInterval = WeightAllowance{}.interval;
  static constexpr uint64_t kLongestWeightsInterval = uint64_t{1} << 20;

 private:
  bool ignores_cost() const { return is_unlimited() || samples_ignore_cost_; }
  uint32_t slices_within(double seconds, double agent_seconds) const;
  void observe_step(Step* step);
  void settle_step(double training_seconds, double cost, uint64_t interval);
  void settle_weights(double seconds, double cost, const MeasuredWeights& weights);
  void choose_weights_interval(double bytes);
  bool pays_for_weights(uint64_t intervals) const;

  double max_slowdown_ = 0;
  bool samples_ignore_cost_ = false, keeps_weights_interval_ = false;
  FirstLook first_look_;
  Account savings_, overdraft_;  // the latter has a smaller limit of debt, for is_overdrawn()
  bool is_overdrawn_ = false;
  int steps_ = 0;
  double host_slice_seconds_ = 0;
  Forecast bare_step_{kBareStep}, sampled_step_{kSampledStep}, device_slice_{kDeviceSlice};
  AgentForecast agent_;
  GradientCost gradients_;

  Account weights_;
  Forecast weight_byte_{kWeightByte};
  double unmeasured_seconds_ = 0;  // since the last measurement; device costs arrive some steps later
  uint64_t weights_interval_ = kFirstWeightsInterval;
  int affordable_steps_ = 0;     // consecutive steps in which a shorter interval was affordable
  uint64_t longest_needed_ = 0;  // longest interval needed in these steps
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_LEDGER_H_
