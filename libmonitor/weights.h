// Which tensors have their turn in a step, and that every turn is accounted for: those that nobody has shown
// by the next step were left out.
//
// Which step of an interval is a tensor's follows from its place in the table alone, so it is the same on
// every rank and in every rerun.
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

// One caller at a time.
class WeightSchedule {
 public:
  // What became of turns since the last call.
  struct Count {
    uint64_t due = 0;   // new ones
    uint64_t lost = 0;  // that nobody has shown
  };

  // Set-up: room for `count` tensors, all of them forgotten. False: there is none.
  bool reserve(uint32_t count);
  // The next tensor begins at this share of the model, from 0 to 1. One that is not here has no turns.
  void add(double begins_at, bool is_here);
  uint32_t count() const { return count_; }

  // Whose turn it is in `step`, without those that were shown in it: numbers in ascending order, as many as
  // there is room for. Asked again in the same step it is the same turns. Where `steps` from `step` on are
  // told as one they are the turns of all of them.
  size_t due(int64_t step, int64_t steps, uint64_t interval, uint32_t* numbers, size_t room, Count* count);
  // Nobody could ask in `step`.
  Count unasked(int64_t step, int64_t steps, uint64_t interval);
  // Tensor `number` was shown in `step`, or is left out for a reason of its own. Returns the turns that were
  // not asked for.
  uint64_t end(uint32_t number, int64_t step);
  // No turn is waited for any more. Returns those that were.
  uint64_t give_up();

 private:
  struct State {
    uint64_t asked, ended;  // rounds
    bool is_here;
  };
  void find(int64_t step, int64_t steps, uint64_t interval, const auto& take);
  // Of an interval of 2^32; of any other one modulo it. By themselves, since all are read at every step.
  uint32_t* turns() const { return reinterpret_cast<uint32_t*>(turns_.data()); }
  State* states() const { return reinterpret_cast<State*>(states_.data()); }

  MmapBuffer turns_, states_;
  uint32_t count_ = 0;
  uint64_t round_ = 1;  // new with every step that is asked about: steps may go back, or be told twice
  int64_t step_ = -1;
  uint64_t open_ = 0;  // turns of this round
};

// The weights as the optimizer leaves them: each tensor's histogram, checksum and last change, once in every
// `interval` steps, one record in the segment each; of those on devices without the change, and some steps
// later. The tensors take turns, so the work is spread evenly over the steps, and each
// tensor is seen whole at one step. An interval twice as long is a subset of the same steps.

class DeviceSampler;

// The steps between two looks at a tensor that keep their cost below a share of the training time. Plain
// arithmetic on measured times.
class WeightCadence {
 public:
  static constexpr uint64_t kFirstInterval = 64;
  static constexpr uint64_t kLongestInterval = uint64_t{1} << 20;

  // `fixed` 0: as often as the budget allows, kFirstInterval at most. A limit of 100 % allows everything.
  void start(double max_slowdown, uint64_t fixed);
  // From here on too little time makes for turns left out, not for a longer interval.
  void hold() { is_fixed_ = true; }
  uint64_t interval() const { return interval_; }

  // A step has ended: its length, and what of it went into tensors of `bytes`. Seconds.
  void end_step(double step_seconds, double cost_seconds, double bytes);
  // The budget of all that the monitor does is overdrawn, or is not any more: a share of it is nobody's own.
  void wait(bool is_overdrawn) { waits_ = is_overdrawn; }
  // All tensors together have `bytes`. Called once a step: the interval becomes longer at once when the share
  // does not pay for it, and shorter when a shorter one has been paid for over kCalm steps.
  void choose_interval(double bytes);
  // Whether another tensor may be read: what is owed is less than an interval's share.
  bool allows() const { return allows_debt(1); }
  // Whether one may be read for its checksum alone, by which replicas are compared: it costs a fraction of a
  // look, so as much again may be owed for it.
  bool allows_checksum() const { return allows_debt(2); }

 private:
  static constexpr double kShare = 0.25;         // of max_slowdown
  static constexpr double kFirstCost = 2.5e-10;  // seconds per byte, until it was measured
  static constexpr double kFirstBytes = 1e6;     // weight of that guess
  static constexpr double kWeight = 0.1;         // of a new step in the running mean of its length
  static constexpr double kKept = 1 - 1.0 / 64;  // of the sums, at each look
  // A look that was preempted costs a hundred times what it should: more than this many times counts as if it
  // were as many, unless the look before it cost as much per byte. kLookSeconds is what the smallest look may
  // cost.
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
  double last_per_byte_ = 0;  // what the last look really cost
  double look_cost_ = 0;      // since the last look: what a device took for one is known some steps later
  double cost_sum_ = kFirstCost * kFirstBytes, byte_sum_ = kFirstBytes;  // of the last looks
  int calm_ = 0;                  // steps in a row for which a shorter interval would have been paid for
  uint64_t longest_in_calm_ = 0;  // the longest that they asked for
};

// One caller at a time.
class WeightSampler {
 public:
  // Forgets the tensors. `ring` null: nothing is followed, nor said. Without room for records it is said why:
  // because of `is_off`, or for want of it. `devices` null: none is asked.
  void attach(segment::TensorRing* ring, uint64_t ring_bytes, const segment::Control* control,
              double max_slowdown, uint64_t fixed_interval, uint64_t memory, bool is_off = false,
              DeviceSampler* devices = nullptr);

  // Other ranks look at the same tensors: the interval is not this rank's own to make longer, since what it
  // tells is compared with, and added to, what they tell of the same steps.
  void share_interval() {
    cadence_.hold();
    has_replicas_ = true;
  }

  // Set-up. Returns how many are followed from now on.
  int name(const foreshock_weight* weights, size_t count);

  // What the sampled calls of attention say; all zero: they differ. `is_sampled`: there was one.
  void set_heads(const HeadGeometry& called, bool is_sampled) {
    heads_ = with_own_keys(called, outputs_);
    knows_heads_ = is_sampled;
  }

  // Whose turn it is in `step`, and the further ones of `steps` that are told as one: a trainer that tells
  // its steps more rarely than it takes them shows each tensor at the first one of a number, on every rank.
  // Of replicas those that were shown least come first: where there is no room for all, it is not always the
  // same ones that go without. What cannot be paid for is left out here: to show it costs the trainer too.
  size_t due(int64_t step, int64_t steps, uint32_t* numbers, size_t room);
  // Nobody could ask in `step`.
  void unasked(int64_t step, int64_t steps);

  void before_step(const foreshock_weight_state* states, size_t count, int64_t step);
  void after_step(const foreshock_weight_state* states, size_t count, int64_t step);

  // Where the numbers of steps come from: ranks that count them apart are not compared.
  void set_step_source(uint32_t source) { step_source_ = source; }

  // Writes the records of what devices have brought since.
  struct Spent {
    uint64_t host_ns = 0;    // now
    uint64_t before_ns = 0;  // when it was sent: take_deferred() has told of it
    uint64_t device_ns = 0;  // of the trainer's stream
  };
  Spent collect();
  // What was spent since it was last asked on turns whose records are not there yet: it is held against the
  // weights together with the rest.
  uint64_t take_deferred() { return std::exchange(deferred_ns_, 0); }

  // A step of this length has ended, and so much of it was spent here; `is_overdrawn`: the budget of all is.
  void end_step(double step_seconds, double cost_seconds, bool is_overdrawn = false);

 private:
  struct Weight {
    char name[160];
    char layer[32];
    int64_t shape[segment::kTensorDims], offset[segment::kTensorDims], part[segment::kTensorDims];
    uint32_t dims;
    uint64_t elements;         // of the part
    uint64_t snapshots;        // taken so far
    uint64_t needs;            // bytes of the ring for its record, as its last turn showed
    uint64_t element_bytes;    // as it was seen last
    uint32_t rest, next_rest;  // turns left out, now and the next time, since its record did not fit
    UpdateSnapshots::Copy copy;
  };

  // A record that is being built in a piece of the ring: its fixed parts first, then the histogram.
  struct Draft {
    segment::TensorRecord* record;
    double *reductions, *optimizer;
    char* histogram;
    uint64_t histogram_at, room;  // from the start of the record
  };
  uint64_t add_heads(const Weight& of, const foreshock_tensor& values, uint64_t at, const Draft& draft);
  HeadGeometry heads_;
  bool knows_heads_ = false;
  ProjectionOutputs outputs_;  // of whole tensors
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
  uint32_t held_ = 0;   // of them with a part on this rank
  uint64_t bytes_ = 0;  // of all tensors, as if of 4 bytes an element
  bool is_off_ = false;
  bool has_replicas_ = false;  // maybe: there are other ranks
  uint64_t copy_share_ = 0;    // of the room for copies, for each tensor of this step
  int64_t copy_step_ = -1;
  uint32_t step_source_ = 0;
  uint64_t read_ = 0;  // bytes since the last end_step

  DeviceSampler* devices_ = nullptr;
  PendingWeights pending_;
  uint64_t deferred_ns_ = 0;
  uint64_t round_ = 0;         // ended steps
  uint64_t host_records_ = 0;  // written without a device
  int64_t host_step_ = -1;     // of the last of them
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_WEIGHTS_H_
