// Measures the weights after optimizer steps: chooses the tensors that are due in a step, keeps the cost
// within its share of the budget, and writes a record for each tensor.
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

// Decides which tensors are due in a step. A tensor is due once per interval; in which step follows from its
// place in the table alone, so it is the same on every rank and in every rerun. Each due tensor is counted:
// one that is not shown before the next step is lost. One caller at a time.
class WeightSchedule {
 public:
  // Numbers of tensors since the last call.
  struct Count {
    uint64_t due = 0;   // newly due
    uint64_t lost = 0;  // due, but never shown
  };

  // Set-up. Makes room for `count` tensors and forgets the present ones. False if there is no memory.
  bool reserve(uint32_t count);
  // Adds the next tensor, which begins at this share of the model, from 0 to 1. `is_here` false: it is never
  // due.
  void add(double begins_at, bool is_here);
  uint32_t count() const { return count_; }

  // The tensors due in `step` that were not shown in it yet: at most `room` numbers, in ascending order. A
  // second call in the same step does not count them again. If `steps` steps from `step` on are reported as
  // one, the tensors of all of them are due.
  size_t due(int64_t step, int64_t steps, uint64_t interval, uint32_t* numbers, size_t room, Count* count);
  // Counts the tensors of `step`, in which due() could not be called.
  Count unasked(int64_t step, int64_t steps, uint64_t interval);
  // Tensor `number` was shown in `step`, or was left out for a reason of its own. Returns the number of
  // tensors that were not due before (1 or 0).
  uint64_t end(uint32_t number, int64_t step);
  // Gives up the due tensors that were not shown. Returns their number.
  uint64_t give_up();

 private:
  struct State {
    uint64_t asked, ended;  // rounds
    bool is_here;
  };
  void find(int64_t step, int64_t steps, uint64_t interval, const auto& take);
  // By tensor: its step in an interval of 2^32; in any other interval modulo that. In an array of their own,
  // since all are read at every step.
  uint32_t* turns() const { return reinterpret_cast<uint32_t*>(turns_.data()); }
  State* states() const { return reinterpret_cast<State*>(states_.data()); }

  MmapBuffer turns_, states_;
  uint32_t count_ = 0;
  uint64_t round_ = 1;  // grows with every step that is asked about: step numbers may go back or repeat
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

  // `fixed`: the interval; 0: the shortest that the budget allows, but at least kFirstInterval. A limit of
  // 100 % allows everything.
  void start(double max_slowdown, uint64_t fixed);
  // Keeps the interval from now on: if the budget is too small, tensors are left out instead.
  void hold() { is_fixed_ = true; }
  uint64_t interval() const { return interval_; }

  // Ends a step of `step_seconds`, in which tensors of `bytes` bytes were measured in `cost_seconds`.
  void end_step(double step_seconds, double cost_seconds, double bytes);
  // Stops all measurements while the overhead budget of the whole monitor is overdrawn.
  void wait(bool is_overdrawn) { waits_ = is_overdrawn; }
  // Called once a step; all tensors together have `bytes` bytes. The interval becomes longer at once if the
  // share does not pay for it, and shorter after the share would have paid for a shorter one during kCalm
  // steps.
  void choose_interval(double bytes);
  // Whether another tensor may be measured: the debt must be below the earnings of one interval.
  bool allows() const { return allows_debt(1); }
  // Whether a tensor may be read for its checksum alone, by which replicas are compared. A checksum costs a
  // fraction of a measurement, so the debt may be twice as large.
  bool allows_checksum() const { return allows_debt(2); }

 private:
  static constexpr double kShare = 0.25;         // share of max_slowdown
  static constexpr double kFirstCost = 2.5e-10;  // seconds per byte before the first measurement
  static constexpr double kFirstBytes = 1e6;     // weight of kFirstCost, in bytes
  static constexpr double kWeight = 0.1;  // weight of a new step in the running mean of the step's length
  static constexpr double kKept = 1 - 1.0 / 64;  // factor of the sums at each measurement
  // A measurement that was preempted may cost a hundred times the usual. A cost above kMostTimes times the
  // usual counts as that much, unless the measurement before was as expensive per byte. kLookSeconds is the
  // cost that the smallest measurement may have.
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
  double look_cost_ = 0;  // cost since the last measurement; that of a device is known only some steps later
  double cost_sum_ = kFirstCost * kFirstBytes, byte_sum_ = kFirstBytes;  // over the last measurements
  int calm_ = 0;                  // consecutive steps in which a shorter interval was affordable
  uint64_t longest_in_calm_ = 0;  // longest interval needed in these steps
};

// Measures each tensor once per interval, after the optimizer's work, and writes a record with its histogram,
// checksum and last change. Tensors on devices have no last change, and their records come some steps later.
// The tensors take turns, so that the work is spread evenly over the steps. The steps of an interval twice as
// long are a subset of those of the shorter one. One caller at a time.
class WeightSampler {
 public:
  // Starts with a new segment and forgets the tensors. `ring` null: nothing is measured or counted. If the
  // ring has no room for records, tensors are counted as not followed, because of `is_off` or for lack of
  // memory. `devices` null: tensors on devices are not measured.
  void attach(segment::TensorRing* ring, uint64_t ring_bytes, const segment::Control* control,
              double max_slowdown, uint64_t fixed_interval, uint64_t memory, bool is_off = false,
              DeviceSampler* devices = nullptr);

  // Other ranks measure the same tensors. The interval must then stay the same on all ranks, since records of
  // the same step are compared and joined.
  void share_interval() {
    cadence_.hold();
    has_replicas_ = true;
  }

  // Set-up. Names the tensors; returns how many are measured from now on.
  int name(const foreshock_weight* weights, size_t count);

  // Sets the heads of the sampled attention calls; all zero: calls differ. `is_sampled`: a call was sampled.
  void set_heads(const HeadGeometry& called, bool is_sampled) {
    heads_ = with_own_keys(called, outputs_);
    knows_heads_ = is_sampled;
  }

  // The numbers of the tensors due in `step`, and in all `steps` steps from it on if they are reported as
  // one; every rank then shows these tensors at the first of these steps. With replicas, the tensors shown
  // least often come first, so that not always the same ones are left out for lack of room. Tensors that the
  // budget cannot pay for are not returned, since showing them also costs the trainer time.
  size_t due(int64_t step, int64_t steps, uint32_t* numbers, size_t room);
  // Counts the tensors of `step`, in which due() could not be called.
  void unasked(int64_t step, int64_t steps);

  void before_step(const foreshock_weight_state* states, size_t count, int64_t step);
  void after_step(const foreshock_weight_state* states, size_t count, int64_t step);

  // Sets the source of step numbers. Ranks whose numbers have different sources are not compared.
  void set_step_source(uint32_t source) { step_source_ = source; }

  struct Spent {
    uint64_t host_ns = 0;    // host time of this call
    uint64_t before_ns = 0;  // host time when the work was sent, as take_deferred() has returned
    uint64_t device_ns = 0;  // time of the trainer's stream
  };
  // Writes the records of results that have come from devices since the last call.
  Spent collect();
  // Host time since the last call for measurements whose results are still on a device. It is charged later,
  // with the rest of their cost.
  uint64_t take_deferred() { return std::exchange(deferred_ns_, 0); }

  // Ends a step, in which weights took `cost_seconds`. `is_overdrawn`: the budget of the whole monitor is
  // overdrawn.
  void end_step(double step_seconds, double cost_seconds, bool is_overdrawn = false);

 private:
  struct Weight {
    char name[160];
    char layer[32];
    int64_t shape[segment::kTensorDims], offset[segment::kTensorDims], part[segment::kTensorDims];
    uint32_t dims;
    uint64_t elements;       // in the part
    uint64_t snapshots;      // number of snapshots so far
    uint64_t needs;          // bytes of the ring that its last record needed
    uint64_t element_bytes;  // size of an element when it was last shown
    uint32_t rest,
        next_rest;  // turns to skip now, and after the next failure, because its record did not fit
    UpdateSnapshots::Copy copy;
  };

  // A record under construction in a piece of the ring: first the fixed parts, then the histogram.
  struct Draft {
    segment::TensorRecord* record;
    double *reductions, *optimizer;
    char* histogram;
    uint64_t histogram_at, room;  // offset of the histogram, and length of the piece
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
  void write(const PendingWeight& errand, char* results);
  size_t pack(const PendingWeight& errand, char* payload, const Draft& draft);
  bool settle(PendingWeight* errand, Spent* spent);
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
  uint64_t bytes_ = 0;  // bytes of all parts, at 4 bytes an element
  bool is_off_ = false;
  bool has_replicas_ = false;  // there are other ranks, which may hold replicas
  uint64_t copy_share_ = 0;    // room for copies per tensor of this step
  int64_t copy_step_ = -1;
  uint32_t step_source_ = 0;
  uint64_t read_ = 0;  // bytes measured since the last end_step()

  DeviceSampler* devices_ = nullptr;
  PendingWeights pending_;
  uint64_t deferred_ns_ = 0;
  uint64_t round_ = 0;         // ended steps
  uint64_t host_records_ = 0;  // records written without a device
  int64_t host_step_ = -1;     // step of the last of these records
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_WEIGHTS_H_
