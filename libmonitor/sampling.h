// Chooses the steps, attention calls and weight tensors to sample, and limits the cost of sampling to a
// budget. The choosing functions are pure: equal arguments give equal results on every rank and in every
// rerun. The classes do arithmetic on measured times and counts; they read no clock.
//
// How often attention is sampled:
// - The first sampled steps of a run are the first look. A fixed grant pays for them (FirstLook).
// - Then one step of each interval is due: with --every the multiple of the interval, otherwise a step that a
//   hash chooses (is_sampled_step). The interval is that of --every, else the one that the agent chooses from
//   measured costs (agent/sampling.h), else kFirstInterval or kSeveralNodesInterval. After a warning the
//   agent may set a smaller interval for a range of steps, a burst.
// - A due step is left out while the budget of --max-slowdown does not pay for it (Budget). Else the budget
//   and the free slots limit the slices that it takes (CostModel), and is_sampled_call chooses the calls.
#ifndef FORESHOCK_LIBMONITOR_SAMPLING_H_
#define FORESHOCK_LIBMONITOR_SAMPLING_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "libmonitor/base.h"
#include "segment/layout.h"

namespace foreshock {

// Sampling intervals until the agent sets one. With several nodes the agents set none: they could not agree.
inline constexpr uint64_t kFirstInterval = 8, kSeveralNodesInterval = 64;

// A hash of four words (splitmix64's finalizer, applied to each word in turn).
uint64_t mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);

// A number from 0 to bound - 1, by the upper half of a hash. The bias of at most bound / 2^32 does not matter
// here.
int64_t below(uint64_t hash, int64_t bound);

// Returns the step that is sampled of the `interval` steps from block * interval on. A hash of the seed
// chooses it, so that a fault in every second step (or in every step of another period) is sampled too. If
// the interval is a power of two, the step is also one of the steps that half the interval samples.
uint64_t sampled_step_of(uint64_t seed, uint64_t block, uint64_t interval);

// Whether a step is sampled. A negative number means an unknown step, which is never sampled. If the trainer
// reports only every `steps`-th step, the `steps` steps from `step` on are sampled together if one of them is
// to be sampled.
bool is_sampled_step(uint64_t seed, int64_t step, uint64_t interval, int64_t steps = 1);

// The same with --every: the number of the step must be a multiple of the interval.
constexpr bool is_multiple_of_every(int64_t step, uint64_t interval, int64_t steps = 1) {
  if (step < 0 || interval == 0 || steps <= 0) return false;
  const uint64_t since_multiple = static_cast<uint64_t>(step) % interval;
  const uint64_t until_multiple = since_multiple == 0 ? 0 : interval - since_multiple;
  return until_multiple < static_cast<uint64_t>(steps);
}

// Whether call number `call` of a sampled step is sampled: all calls if `expected_calls` <= `slices`, else
// exactly `slices` of the first `expected_calls` calls, evenly spread. The choice moves from step to step, so
// that every call has the same chance and layers take turns.
bool is_sampled_call(uint64_t seed, int64_t step, uint64_t call, uint32_t slices, uint64_t expected_calls);

// Infers the ordinal (a layer's number) of calls without a layer name from their order: a model calls its
// layers in turn, and backward in reverse. A run is a sequence of calls in one direction. The period is the
// number of layers: the length of a forward run through the model once. A run of several periods is possible
// too, with an evaluation between two steps. Call n (from 0) of a forward run gets the ordinal n modulo the
// period; the backward calls after the run get its ordinals in reverse. Ordinals are known once two forward
// runs in a row agree: the length of each is a multiple of the period. They become unknown for the rest of
// the process if a later run does not agree, or, at any time, if a run that is not the first of its step is
// shorter than the period (perhaps a recomputation that is not marked). next() must be called for every call
// of the sampled steps, in order.
class OrdinalFollower {
 public:
  // Called at the start of a sampled step.
  void begin_step();

  // Returns the ordinal of the next call; -1: unknown. A forward call during a backward pass repeats the
  // forward pass (checkpointing), so it has no ordinal and does not change the direction.
  int next(bool is_backward_call, bool during_backward_pass);

 private:
  static constexpr uint32_t kRunsToTrust = 2;
  void end_run();
  bool is_trusted() const { return !unstable_ && agreeing_runs_ >= kRunsToTrust; }

  uint32_t ended_runs_ = 0;       // number of forward runs that have ended in this step
  uint32_t run_length_ = 0;       // forward calls since the direction last changed
  uint32_t backward_calls_ = 0;   // backward calls since the direction last changed
  uint32_t last_run_length_ = 0;  // length of the forward run before the present backward calls
  uint32_t period_ = 0;           // 0: not known yet
  uint32_t agreeing_runs_ = 0;    // consecutive runs with this period
  bool unstable_ = false;         // no ordinals for the rest of the process
};

// Limits the monitor's time to the ratio max_slowdown of the training time. Every step, sampled or not, earns
// max_slowdown times its length (without the monitor's time) and pays for the monitor's time. A sampled step
// is allowed while the balance is not negative, and may take as many slices as the balance is expected to pay
// for. Savings are limited to the earnings of one sampling interval plus the cost of the smallest sample, so
// that an hour of low costs does not pay for an expensive minute. Debt is limited to the earnings of 64
// intervals, so that one stall (many page faults, a stopped process) does not stop the sampling for hours.
class Budget {
 public:
  // Sets the limit to `times` times max_slowdown; `times` is above 1 in a burst (denser sampling after a
  // warning). A max_slowdown below 100 % is raised to at most 99 %, since a limit of 100 % means no limit.
  void set_limit(double max_slowdown, double times = 1) {
    max_slowdown_ = std::max(max_slowdown, std::min(times * max_slowdown, kMaxRaisedLimit));
  }

  // Ends a step. `cost_seconds`: the monitor's time in it. `interval`: the sampling interval, without bursts.
  // `smallest_sample_seconds`: the expected cost of a step with one slice; the caller may add a margin.
  void end_step(double step_seconds, double cost_seconds, uint64_t interval,
                double smallest_sample_seconds = 0);

  // Whether the sampled step that begins now is allowed. With a limit of 100 % always, with 0 never.
  bool allows() const { return is_unlimited() || (max_slowdown_ > 0 && balance_seconds_ >= 0); }
  bool is_unlimited() const { return max_slowdown_ >= 1; }

  // Becomes true when the debt exceeds the earnings of 256 steps (fewer with an interval below
  // kOverdraftInterval), and false when the debt is paid off. Samples stop as soon as there is a debt, so
  // only other costs can make it so large. The measurement of weights, which has a budget of its own
  // (WeightCadence), must then wait.
  bool is_overdrawn() const { return !is_unlimited() && is_overdrawn_; }

  // The savings; negative: debt.
  double balance_seconds() const { return balance_seconds_; }

 private:
  static constexpr double kMaxRaisedLimit = 0.99;  // largest limit, unless max_slowdown itself is larger
  static constexpr double kWeight = 0.1;  // weight of a new step in the running mean of the step time
  static constexpr double kMaxDebtIntervals = 64;  // largest debt: the earnings of this many intervals
  // overdraft_balance_ counts an interval as at most this many steps. So its debt is at most the earnings of
  // 64 * 8 = 512 steps, even with a long interval. From half of that debt on, is_overdrawn() is true.
  static constexpr uint64_t kOverdraftInterval = 8;
  // The first steps contain the set-up, whose cost is reported but does not change the balance.
  static constexpr int kFirstSteps = 2;

  double max_slowdown_ = 0.01;
  double step_seconds_ = 0;  // running mean of a step's length, without the monitor's time
  double balance_seconds_ = 0;
  double overdraft_balance_ = 0;  // a second balance with a smaller largest debt, for is_overdrawn()
  bool is_overdrawn_ = false;
  int steps_ = 0;
};

// The first look: the first steps of a process are sampled regardless of the interval, so that a short run is
// judged too. Instead of the budget, a fixed grant of seconds pays for the monitor's time in these steps. The
// first look ends as soon as kSampledSteps steps were sampled; or at least kSlices slices, and two per call
// of a step, were copied; or kMostSteps steps have ended; or the grant is spent.
class FirstLook {
 public:
  static constexpr int kSampledSteps = 8, kMostSteps = 32;
  static constexpr uint64_t kSlices = 64;  // limits the agent's work; a verdict needs 8 slices of each pass

  FirstLook() = default;
  // `is_wanted`: false if the user chose the sampled steps, or allows no cost.
  explicit FirstLook(bool is_wanted) : sampled_steps_left_(is_wanted ? kSampledSteps : 0) {}
  bool is_open() const { return sampled_steps_left_ > 0 && seconds_left_ > 0; }
  // The unspent grant, in seconds; 0 when the first look has ended.
  double seconds_left() const { return is_open() ? seconds_left_ : 0; }

  // Ends a step with `calls` attention calls and `slices` slices. Returns the seconds that the grant pays.
  double end_step(bool was_sampled, uint64_t calls, uint64_t slices, double cost_seconds) {
    if (!is_open()) return 0;
    const double paid = std::min(std::max(cost_seconds, 0.0), seconds_left_);
    seconds_left_ -= paid;
    slices_ += slices;
    if (was_sampled) --sampled_steps_left_;
    ++ended_steps_;
    if (slices_ >= std::max(kSlices, 2 * calls) || ended_steps_ == kMostSteps) sampled_steps_left_ = 0;
    return paid;
  }

 private:
  int sampled_steps_left_ = 0, ended_steps_ = 0;
  uint64_t slices_ = 0;
  double seconds_left_ = segment::kFirstLookSeconds;
};

// Estimates the agent's work. The agent, another process on the rank's cores, works on each slice too. This
// work is charged when the slice is copied, with an estimate from earlier slices, and the charge is corrected
// when the agent reports its time. Without the estimate, too many slices would be copied before the first
// report. One caller at a time.
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
  // for them. Returns the seconds that the budget pays in this step; negative: a forecast was too high.
  double end_step(uint64_t slices, bool is_first_look, const Report& report);

  // The agent's expected time for a slice of query rows and the slice of key positions that may come with it;
  // 0: not known yet.
  double slice_seconds() const { return slice_seconds_; }
  // The agent's mean time for the rest of its work in a step: all but slices and weight tensors.
  double rest_seconds() const { return rest_seconds_; }

 private:
  static constexpr double kMostMeanSteps = 128;  // after so many steps a new one has the weight 1 / 128
  double slice_seconds_ = 0, rest_seconds_ = 0;
  double steps_ = 0;          // steps in the mean rest_seconds_; at most kMostMeanSteps
  double charged_ = 0;        // seconds charged for slices that the agent has not reported
  uint64_t outstanding_ = 0;  // number of slices that the agent has not reported
};

// Predicts the cost of a sampled step from the costs of earlier ones. Until the first measurement it assumes
// a slow machine. One caller at a time. Units are seconds and bytes.
class CostModel {
 public:
  // Sets the size of a slice that is expected until the first slice is observed.
  void expect_slice(uint64_t bytes) { bytes_ = static_cast<double>(bytes); }
  // A slice was copied. The first use of a slot costs more, since the kernel has to map its pages.
  void observe_slice(uint64_t bytes, bool first_use_of_slot, double seconds);
  // `slices` slices took `seconds` of device time together, in addition to the host time.
  void observe_device(uint32_t slices, double seconds);
  // A step has ended; `seconds` is the monitor's time in it, without slices and weights.
  void observe_step(bool sampled, double seconds);
  // The usual cost of a step without samples and without weights; 0: none seen yet.
  double bare_seconds() const { return bare_seconds_; }

  // The expected cost of the next slice, and the expected extra cost of a sampled step without slices.
  double slice_seconds(bool first_use_of_slot) const;
  double sampled_step_extra_seconds() const;

  // Returns how many slices `seconds` pay for in a step. A slice costs the agent `agent_seconds` in addition.
  uint32_t slices_within(double seconds, bool first_use_of_slot, double agent_seconds) const;

 private:
  double reused_seconds(double bytes) const;  // with a slot that was used before

  // Sums for a least-squares line of seconds over bytes. Each new observation multiplies the older sums by
  // kFading. The sums begin with two assumed observations: an empty slice and one of kFirstBytes.
  static constexpr double kFading = 0.95;
  static constexpr double kFirstSliceSeconds = 10e-6, kFirstSecondsPerByte = 0.3e-9, kFirstBytes = 1 << 20;
  double count_ = 2, bytes_sum_ = kFirstBytes, bytes_squares_ = kFirstBytes * kFirstBytes;
  double seconds_sum_ = 2 * kFirstSliceSeconds + kFirstSecondsPerByte * kFirstBytes;
  double products_sum_ = kFirstBytes * (kFirstSliceSeconds + kFirstSecondsPerByte * kFirstBytes);
  double first_use_per_byte_ = 0.5e-9;  // extra cost per byte of the first use of a slot
  double device_seconds_ = 0;           // cost of a slice on the device, in addition to the host
  double bytes_ = 0;                    // size of the last slice

  // sampled_step_extra_seconds() takes the median of last_sampled_, so that one stall does not stop the
  // sampling for hours.
  static constexpr uint32_t kLastSampled = 5;
  double last_sampled_[kLastSampled] = {};  // costs of the last sampled steps
  uint32_t sampled_steps_ = 0;              // number of sampled steps so far
  // Usual cost of steps that were not sampled: a running mean. A stall changes it little, and the set-up in
  // the first step raises it only for a short time.
  double bare_seconds_ = 0;
};

// Estimates the time that summing a step's gradients takes on the trainer's stream. The caller charges the
// estimate to the monitor's budget before the kernels run. When the device's times have arrived, a shortfall
// is charged and an excess is deducted from later charges. Pure arithmetic, fixed state. Thread-compatible.
class GradientCost {
 public:
  // Stores the work of a step: kernels that read `bytes` bytes, and `kernels` further kernels. The further
  // kernels run outside of the interval between the device's two times, so their time is never measured.
  // Returns the charge to expect, in ns. If the kernels are launched, the caller must charge the result of
  // record_launch().
  uint64_t expect_work(uint64_t bytes, uint64_t kernels);
  // Returns the charge to expect, in seconds, for repeating the work of the last expect_work().
  double expected_seconds() const { return static_cast<double>(expected_charge_ns()) * 1e-9; }

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
      record_times(launch, std::bit_cast<uint64_t>(begin), std::bit_cast<uint64_t>(end));
      launch.bytes = 0;
    }
  }

  uint64_t take_owed();  // returns the shortfall in ns that is not charged yet, and counts it as charged

 private:
  struct Launch {
    uint64_t begin, end;  // numbers of the two times
    uint64_t bytes;       // 0: the times have been read
    double expected_ns;   // estimate for `bytes` alone
  };
  uint64_t expected_charge_ns() const;  // the estimate for bytes_ and kernels_, corrected by owed_ns_
  void record_times(const Launch& launch, uint64_t begin_ns, uint64_t end_ns);

  // Training GPUs read at least 200 bytes per ns.
  static constexpr double kFirstNsPerByte = 1.0 / 200;
  // A high estimate for each further kernel: an empty one takes 2000 to 3000 ns from launch to launch.
  static constexpr double kKernelNs = 4000;
  static constexpr uint32_t kMostPending = 8;  // steps whose times can be pending; older ones are ignored

  double ns_per_byte_ = kFirstNsPerByte;
  bool is_measured_ = false;          // ns_per_byte_ comes from the device's times
  double owed_ns_ = 0;                // negative: too much was charged
  uint64_t bytes_ = 0, kernels_ = 0;  // of the last expect_work()
  Launch launches_[kMostPending] = {};
  uint32_t launched_ = 0;  // number of launches so far
};

// Decides which weight tensors are due, i.e. to be measured, in a step. A tensor is due once per interval, in
// a step that depends only on the tensor's position in the model. So this step is the same on every rank and
// in every rerun. A tensor is shown when the trainer passes its values. Every due tensor is counted; a due
// tensor that is not shown before the next step is counted as lost. One caller at a time.
class WeightSchedule {
 public:
  // Numbers of tensors that were not counted before.
  struct DueCount {
    uint64_t due = 0;
    uint64_t lost = 0;  // due, but never shown
  };

  // Set-up. Allocates room for `count` tensors and forgets the present ones. Returns false without memory.
  bool reserve(uint32_t count);
  // Adds the next tensor. `begins_at`, in [0, 1), is the share of the model's elements before it. `is_here`
  // false: this rank has no part of the tensor, so the tensor is never due.
  void add(double begins_at, bool is_here);
  uint32_t count() const { return count_; }

  // Writes to `numbers` the numbers of the tensors that are due in `step` and were not shown in it yet: at
  // most `room`, in ascending order. Returns how many. A second call in the same step does not count them
  // again. If the `steps` steps from `step` on are reported as one, the tensors of all these steps are due.
  size_t find_due(int64_t step, int64_t steps, uint64_t interval, uint32_t* numbers, size_t room,
                  DueCount* count);
  // Returns the next step in which a tensor may be due, if the interval and `steps` stay as in the last call
  // of find_due(). Must be called right after find_due().
  int64_t next_due() const { return next_due_; }
  // Returns the count of `step`, in which find_due() could not be called: all tensors due in it are lost.
  DueCount count_missed(int64_t step, int64_t steps, uint64_t interval);
  // Records that tensor `number` was shown in `step`, or skipped for a reason that is counted elsewhere. The
  // trainer may show any tensor, but each showing must belong to one due tensor in the counts. So this
  // returns how many due tensors the caller must add to them: 0 if find_due() counted this tensor in this
  // step and it was neither shown nor skipped since, else 1.
  uint64_t mark_done(uint32_t number, int64_t step);
  // Forgets the due tensors that were not shown. Returns their number.
  uint64_t forget_due();

 private:
  struct State {
    uint64_t due_round, end_round;  // round_ when the tensor was last due, and when last shown or skipped
    bool is_here;
  };
  uint64_t for_each_due(int64_t step, int64_t steps, uint64_t interval, const auto& use);
  // turn % interval is the step, within the interval, in which a tensor is due. Separate from State, because
  // find_due() reads all turns.
  uint32_t* turns() const { return reinterpret_cast<uint32_t*>(turns_.data()); }
  State* states() const { return reinterpret_cast<State*>(states_.data()); }

  MmapBuffer turns_, states_;
  uint32_t count_ = 0;
  uint64_t round_ = 1;  // incremented at each new step in find_due(), as step numbers may go back or repeat
  int64_t step_ = -1;
  int64_t next_due_ = 0;
  uint64_t due_not_shown_ = 0;  // number of due tensors of this round that were neither shown nor skipped
};

// Chooses the interval (steps) between two measurements of a weight tensor. The limit is max_slowdown times
// the training time. The unavoidable costs, of steps without samples and weights, are subtracted from it.
// Measurements may cost kShare times the rest. The rest counts as at least kMinShareLeft times the limit,
// since the unavoidable costs are estimates.
class WeightCadence {
 public:
  static constexpr uint64_t kFirstInterval = 64;
  static constexpr uint64_t kLongestInterval = uint64_t{1} << 20;

  // `fixed`: the interval; 0: the shortest >= kFirstInterval that the share pays. max_slowdown 1: no limit.
  void start(double max_slowdown, uint64_t fixed);
  // Makes the present interval final. If the share does not pay for it, tensors are skipped instead.
  void keep_interval() { is_fixed_ = true; }
  uint64_t interval() const { return interval_; }

  // Ends a step of `step_seconds` seconds, in which the measurement of `bytes` bytes took `cost_seconds`.
  // `unavoidable_seconds`: what trainer and agent are expected to spend on a step without samples and
  // weights.
  void end_step(double step_seconds, double cost_seconds, double bytes, double unavoidable_seconds);
  // Measurements stop while the overhead budget of the whole monitor is overdrawn.
  void set_budget_overdrawn(bool is_overdrawn) { is_budget_overdrawn_ = is_overdrawn; }
  // Chooses the interval; called once a step. `bytes` is the size of all tensors together. If the share does
  // not pay for the present interval, a longer one is chosen at once. If it would have paid for a shorter
  // interval in each of the last kStepsToShorten steps, the shorter one is chosen.
  void choose_interval(double bytes);
  // Whether another tensor may be measured: the debt must be below the earnings of one interval.
  bool allows() const { return allows_debt(1); }
  // Whether a tensor may be read just for its checksum, which is compared between replicas. A checksum costs
  // a fraction of a measurement, so the debt may be twice as large.
  bool allows_checksum() const { return allows_debt(2); }

 private:
  static constexpr double kShare = 0.25, kMinShareLeft = 1.0 / 8;
  static constexpr double kFirstCost = 2.5e-10;  // assumed seconds per byte before the first measurement
  static constexpr double kFirstBytes = 1e6;     // bytes of an assumed measurement with kFirstCost
  static constexpr double kWeight = 0.1;         // weight of a new step in the running mean of free_seconds_
  static constexpr double kKept = 1 - 1.0 / 64;  // decay of the sums at each measurement
  // A preempted measurement may take a hundred times the usual time. So a cost counts as at most
  // kMaxTimesUsual times the usual cost, unless the previous measurement was as expensive per byte.
  // kFixedSeconds, the part that does not depend on the size, is added to the usual cost.
  static constexpr double kMaxTimesUsual = 8, kFixedSeconds = 5e-5;
  static constexpr int kStepsToShorten = 128;
  bool allows_debt(double intervals) const;
  double interval_earnings() const { return share_ * static_cast<double>(interval_) * free_seconds_; }
  double seconds_per_byte() const { return cost_sum_ / byte_sum_; }
  uint64_t interval_for(double bytes) const;

  double max_slowdown_ = 0, share_ = 0;  // share_: kShare * max_slowdown_, of the training time
  uint64_t interval_ = kFirstInterval;
  bool is_fixed_ = false, is_unlimited_ = false, is_budget_overdrawn_ = false;
  // free_seconds_: running mean of a step's length without measurements, minus (its unavoidable costs divided
  // by max_slowdown). Each of these seconds earns share_ seconds for measurements.
  double free_seconds_ = 0;
  double balance_ = 0;        // the savings; negative: debt
  double last_per_byte_ = 0;  // true cost of the last measurement, not limited by kMaxTimesUsual
  double new_cost_ = 0;       // seconds since the last measurement; device costs arrive some steps later
  double cost_sum_ = kFirstCost * kFirstBytes, byte_sum_ = kFirstBytes;  // over the last measurements
  int affordable_steps_ = 0;     // consecutive steps in which a shorter interval was affordable
  uint64_t longest_needed_ = 0;  // longest interval needed in these steps
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_SAMPLING_H_
