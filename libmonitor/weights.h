// Measures the weights after optimizer steps: chooses the tensors that are due in a step, keeps the cost
// within a share of the overhead budget, and writes a record for each measured tensor.
#ifndef FORESHOCK_LIBMONITOR_WEIGHTS_H_
#define FORESHOCK_LIBMONITOR_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "foreshock/hook.h"
#include "kernels/dtype.h"
#include "libmonitor/base.h"
#include "libmonitor/heads.h"
#include "libmonitor/weight_measure.h"
#include "libmonitor/weights_cuda.h"
#include "segment/writer.h"

namespace foreshock {

// Decides which tensors are due in a step. A tensor is due once per interval. Its step depends only on the
// tensor's position in the model, so it is the same on every rank and in every rerun. Every due tensor is
// counted. A due tensor that the trainer does not show before the next step is counted as lost. One caller at
// a time.
class WeightSchedule {
 public:
  // Numbers of tensors since the last call.
  struct Count {
    uint64_t due = 0;   // newly due
    uint64_t lost = 0;  // due, but never shown
  };

  // Set-up. Makes room for `count` tensors and forgets the present ones. False if there is no memory.
  bool reserve(uint32_t count);
  // Adds the next tensor. `begins_at`, from 0 to 1, is the share of the model's elements before it. `is_here`
  // false: this rank has no part of it, so it is never due.
  void add(double begins_at, bool is_here);
  uint32_t count() const { return count_; }

  // Returns the tensors that are due in `step` and were not shown in it yet: at most `room` numbers, in
  // ascending order. A second call in the same step does not count them again. If the `steps` steps from
  // `step` on are reported as one, the tensors of all these steps are due.
  size_t due(int64_t step, int64_t steps, uint64_t interval, uint32_t* numbers, size_t room, Count* count);
  // Returns the count of the tensors of `step`, in which due() could not be called.
  Count unasked(int64_t step, int64_t steps, uint64_t interval);
  // Records that tensor `number` was shown in `step`, or skipped for a reason that is counted elsewhere.
  // Returns 1 if the tensor was not due, else 0.
  uint64_t end(uint32_t number, int64_t step);
  // Forgets the due tensors that were not shown. Returns their number.
  uint64_t give_up();

 private:
  struct State {
    uint64_t due_round,
        end_round;  // the last rounds in which the tensor was due, and in which end() was called
    bool is_here;
  };
  void find(int64_t step, int64_t steps, uint64_t interval, const auto& take);
  // For each tensor: its step within an interval of 2^32 steps. Its step within a shorter interval is this
  // number modulo that interval. Separate from State, because all turns are read at every step.
  uint32_t* turns() const { return reinterpret_cast<uint32_t*>(turns_.data()); }
  State* states() const { return reinterpret_cast<State*>(states_.data()); }

  MmapBuffer turns_, states_;
  uint32_t count_ = 0;
  uint64_t round_ = 1;  // incremented at each new step of due(), since step numbers may go back or repeat
  int64_t step_ = -1;
  uint64_t open_ = 0;  // due tensors of this round that were not shown
};

class DeviceSampler;

// Chooses the interval between two measurements of a tensor so that their cost stays below a share of the
// training time. Plain arithmetic on measured times.
class WeightCadence {
 public:
  static constexpr uint64_t kFirstInterval = 64;
  static constexpr uint64_t kLongestInterval = uint64_t{1} << 20;

  // `fixed`: the interval; 0: the shortest interval that the budget allows, but at least kFirstInterval.
  // max_slowdown 1: there is no limit.
  void start(double max_slowdown, uint64_t fixed);
  // Keeps the present interval from now on. If the budget is too small, tensors are skipped instead.
  void hold() { is_fixed_ = true; }
  uint64_t interval() const { return interval_; }

  // Ends a step of `step_seconds` seconds, in which the measurement of `bytes` bytes took `cost_seconds`.
  void end_step(double step_seconds, double cost_seconds, double bytes);
  // Stops all measurements while the overhead budget of the whole monitor is overdrawn.
  void wait(bool is_overdrawn) { waits_ = is_overdrawn; }
  // Chooses the interval; called once a step. `bytes` is the size of all tensors together. If the share does
  // not pay for the present interval, a longer one is chosen at once. If the share has paid for a shorter
  // interval during kCalm steps, the shorter one is chosen.
  void choose_interval(double bytes);
  // Whether another tensor may be measured: the debt must be below the earnings of one interval.
  bool allows() const { return allows_debt(1); }
  // Whether a tensor may be read only for its checksum, which is compared between replicas. A checksum costs
  // a fraction of a measurement, so the debt may be twice as large.
  bool allows_checksum() const { return allows_debt(2); }

 private:
  static constexpr double kShare = 0.25;         // share of max_slowdown
  static constexpr double kFirstCost = 2.5e-10;  // seconds per byte before the first measurement
  static constexpr double kFirstBytes = 1e6;     // weight of kFirstCost, in bytes
  static constexpr double kWeight = 0.1;  // weight of a new step in the running mean of the step's length
  static constexpr double kKept = 1 - 1.0 / 64;  // decay of the sums at each measurement
  // A preempted measurement may take a hundred times the usual time. A cost counts as at most kMostTimes
  // times the usual cost, unless the previous measurement was as expensive per byte. kLookSeconds is added to
  // the usual cost, so that small measurements are not limited by their fixed cost.
  static constexpr double kMostTimes = 8, kLookSeconds = 5e-5;
  static constexpr int kCalm = 128;  // steps
  bool allows_debt(double intervals) const;
  double earnings() const { return share_ * static_cast<double>(interval_) * step_seconds_; }
  double seconds_per_byte() const { return cost_sum_ / byte_sum_; }
  uint64_t interval_for(double bytes) const;

  double share_ = 0;
  uint64_t interval_ = kFirstInterval;
  bool is_fixed_ = false, is_unlimited_ = false, waits_ = false;
  double step_seconds_ = 0, balance_ = 0;
  double last_per_byte_ = 0;  // true cost of the last measurement
  double look_cost_ = 0;      // cost since the last measurement; device costs arrive some steps later
  double cost_sum_ = kFirstCost * kFirstBytes, byte_sum_ = kFirstBytes;  // over the last measurements
  int calm_ = 0;                  // consecutive steps in which a shorter interval was affordable
  uint64_t longest_in_calm_ = 0;  // longest interval needed in these steps
};

// Measures each tensor once per interval, after the optimizer's work, and writes a record with its histogram,
// its checksum and the change made by the step. For a tensor on a device the change is not measured, and the
// record is written some steps later. The work is spread evenly over the steps of an interval. If the
// interval doubles, a tensor's steps are a subset of its earlier ones. One caller at a time.
class WeightSampler {
 public:
  // Starts with a new segment and forgets the tensors. `ring` null: nothing is measured or counted. If the
  // ring has no room for records, tensors are counted as not followed: switched off if `is_off`, else out of
  // memory. `devices` null: tensors on devices are not measured.
  void attach(segment::TensorRing* ring, uint64_t ring_bytes, const segment::Control* control,
              double max_slowdown, uint64_t fixed_interval, uint64_t memory, bool is_off = false,
              DeviceSampler* devices = nullptr);

  // Must be called if other ranks measure the same tensors. Fixes the interval, which must be equal on all
  // ranks, since records of the same step are compared and joined.
  void share_interval() {
    cadence_.hold();
    has_replicas_ = true;
  }

  // Set-up. Names the tensors; returns how many are measured from now on.
  int name(const foreshock_weight* weights, size_t count);

  // Sets the head geometry of the sampled attention calls; all zero: calls differ. `is_sampled`: at least one
  // call was sampled.
  void set_heads(const HeadGeometry& called, bool is_sampled) {
    heads_ = with_own_keys(called, outputs_);
    knows_heads_ = is_sampled;
  }

  // Returns the numbers of the tensors due in the `steps` steps from `step` on, which are reported as one
  // step. Every rank shows these tensors at the first of the steps. With replicas, the tensors with the
  // fewest snapshots come first, so that lack of room does not always hit the same tensors. Returns none if
  // the budget cannot pay for them, since showing a tensor also costs the trainer time.
  size_t due(int64_t step, int64_t steps, uint32_t* numbers, size_t room);
  // Counts the tensors of `step`, in which due() could not be called, as lost.
  void unasked(int64_t step, int64_t steps);

  // The trainer shows tensors before and after the optimizer's work. before_step() copies host tensors, so
  // that after_step() can measure the change.
  void before_step(const foreshock_weight_state* states, size_t count, int64_t step);
  void after_step(const foreshock_weight_state* states, size_t count, int64_t step);

  // Sets the source of step numbers. Ranks whose numbers have different sources are not compared.
  void set_step_source(uint32_t source) { step_source_ = source; }

  struct Spent {
    uint64_t host_ns = 0;    // host time of this call
    uint64_t before_ns = 0;  // host time for launching the work, which take_deferred() has returned before
    uint64_t device_ns = 0;  // time on the trainer's stream
  };
  // Writes the records of results that have come from devices since the last call.
  Spent collect();
  // Returns the host time since the last call that was spent on launching device measurements. collect()
  // charges it together with the rest of their cost.
  uint64_t take_deferred() { return std::exchange(deferred_ns_, 0); }

  // Ends a step in which weights cost `cost_seconds`. `is_overdrawn`: see Budget::is_overdrawn().
  void end_step(double step_seconds, double cost_seconds, bool is_overdrawn = false);

 private:
  struct Weight {
    char name[160];
    char layer[32];
    int64_t shape[segment::kTensorDims], offset[segment::kTensorDims], part[segment::kTensorDims];
    uint32_t dims;
    uint64_t elements;       // in the part
    uint64_t snapshots;      // number of snapshots so far
    uint64_t needs;          // ring bytes to reserve for the next record
    uint64_t element_bytes;  // size of an element when it was last shown
    uint32_t rest,
        next_rest;  // turns that are still skipped because a record did not fit; length of the last such skip
    UpdateSnapshots::Copy copy;
  };

  // A record under construction in the ring: first the parts of fixed size, then the histogram.
  struct Draft {
    segment::TensorRecord* record;
    double *reductions, *optimizer;
    char* histogram;
    uint64_t histogram_at, room;  // offset of the histogram; bytes available to the record
  };
  uint64_t add_heads(const Weight& of, const foreshock_tensor& values, uint64_t at, const Draft& draft);
  HeadGeometry heads_;
  bool knows_heads_ = false;
  ProjectionOutputs outputs_;  // from the shapes of whole tensors
  Weight* weight(uint32_t number) { return reinterpret_cast<Weight*>(table_.data()) + number; }
  void add(const foreshock_weight& given, double begins_at);
  void count(const WeightSchedule::Count& turns);
  void share_copies(const uint32_t* numbers, size_t count);
  bool check(const foreshock_weight_state& state, segment::TensorSkip* why);
  void show(const foreshock_weight_state& state, int64_t step);
  void take(const foreshock_weight_state& state, int64_t step);

  bool open(const Weight& of, Draft* draft);
  void write_checksum(const foreshock_weight_state& state, int64_t step);
  uint64_t checksum_room() const;
  void close(Weight* of, const Draft& draft, uint64_t end);

  // weights_cuda.cpp
  void send(const foreshock_weight_state& state, int64_t step);
  void write(const PendingWeight& pending, char* results);
  size_t pack(const PendingWeight& pending, char* payload, const Draft& draft);
  bool settle(PendingWeight* pending, Spent* spent);
  void describe(const Weight& weight, uint32_t number, DType type, int64_t step,
                segment::TensorRecord* record) const;
  static bool is_on_device(const foreshock_weight_state& state) {
    return state.parameter.device_type == FORESHOCK_DEVICE_CUDA;
  }
  void reduce(const Weight& weight, const foreshock_tensor& values, DType type, int64_t step,
              double* reductions) const;
  bool is_resting(Weight* weight);
  void rest(Weight* weight, uint64_t room);

  segment::TensorWriter writer_;
  WeightCadence cadence_;
  WeightSchedule turns_;
  UpdateSnapshots copies_;
  HistogramPacker packer_;
  MmapBuffer table_;
  uint64_t memory_ = 0;
  uint32_t count_ = 0;
  uint32_t held_ = 0;   // tensors with a part on this rank
  uint64_t bytes_ = 0;  // size of these parts, at 4 bytes an element
  bool is_off_ = false;
  bool has_replicas_ = false;  // there are other ranks, which may hold replicas
  uint64_t copy_share_ = 0;    // memory for the copy of one tensor in this step, in bytes
  int64_t copy_step_ = -1;
  uint32_t step_source_ = 0;
  uint64_t read_ = 0;  // bytes measured since the last end_step()

  DeviceSampler* devices_ = nullptr;
  PendingWeights pending_;
  uint64_t deferred_ns_ = 0;
  uint64_t round_ = 0;         // number of ended steps
  uint64_t host_records_ = 0;  // records written without a device
  int64_t host_step_ = -1;     // step of the last of these records
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_WEIGHTS_H_
