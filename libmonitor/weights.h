// Measures the model's weight tensors, on the host or on a device, after optimizer steps. Each tensor is due
// in one step of every interval (its turn), and is measured if the ledger pays for it (ledger.h). The
// result, a snapshot, is a record in a ring of the segment. It has a histogram, a checksum and sums.
#ifndef FORESHOCK_LIBMONITOR_WEIGHTS_H_
#define FORESHOCK_LIBMONITOR_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "foreshock/hook.h"
#include "kernels/dtype.h"
#include "libmonitor/base.h"
#include "libmonitor/call.h"
#include "libmonitor/cuda_driver.h"
#include "libmonitor/ledger.h"
#include "libmonitor/sampling.h"
#include "libmonitor/weight_measure.h"
#include "segment/layout.h"
#include "segment/writer.h"

namespace foreshock {

class DeviceSampler;

// A measurement that was sent to a device, with what the host knew of the tensor at that time.
struct PendingWeight {
  WeightWork work;           // what the device computes
  SentWork sent;             // where its results arrive
  int device_place;          // index of the device in DeviceSampler
  uint32_t number;           // number of the tensor
  OptimizerState optimizer;  // the tensors' data may no longer exist
  int64_t step;
  uint64_t time_ns, interval;
  uint64_t launch_ns;     // host time for the launch
  uint64_t ended_steps;   // number of ended steps at the time of sending
  uint64_t host_records;  // host_records_ at the time of sending; a change may mean a record of a later step
  bool is_forgotten;      // tensors were named again after sending; the measurement was counted as skipped
};

// The measurements whose results have not arrived yet, in the order in which they were sent. Records must be
// written in this order, since the agent expects that steps ascend. Thread-compatible.
class PendingWeights {
 public:
  static constexpr uint32_t kMost = StagingRing::kMostSlices;  // as many as one device can hold

  uint32_t count() const { return count_; }
  // Returns the entry to fill in for the next measurement, or null if there are kMost. push() adds the entry.
  PendingWeight* next() { return count_ == kMost ? nullptr : &at(count_); }
  void push() { ++count_; }

  PendingWeight* oldest() { return count_ == 0 ? nullptr : &at(0); }
  void pop() {  // removes the oldest
    first_ = (first_ + 1) % kMost;
    --count_;
  }
  // Marks all measurements as forgotten. Returns how many were not marked before.
  uint32_t forget() {
    uint32_t forgotten = 0;
    for (uint32_t n = 0; n < count_; ++n) forgotten += !std::exchange(at(n).is_forgotten, true);
    return forgotten;
  }
  void clear() { first_ = count_ = 0; }

 private:
  PendingWeight& at(uint32_t n) { return pending_[(first_ + n) % kMost]; }

  uint32_t first_ = 0, count_ = 0;
  PendingWeight pending_[kMost] = {};
};

// Measures each tensor once per interval, after the optimizer's work. The tensors are spread evenly over the
// steps of an interval. The snapshot of a host tensor also has the change made by the step. The snapshot of a
// device tensor does not, and is written some steps later. One caller at a time.
class WeightSampler {
 public:
  // Starts with a new segment and forgets the tensors. `ring` null: nothing is measured or counted. If the
  // ring has no room for records, tensors are counted as not followed: "off" if `is_off`, else "no_room".
  // `most_copy_bytes`: limit for copies of tensors. `devices` null: device tensors are not measured.
  // `segment`: that of the ring; null: the ring is in no segment, and `control` has the cursor of its reader.
  void attach(segment::TensorRing* ring, uint64_t ring_bytes, const segment::Control* control,
              const WeightAllowance& allowed, uint64_t most_copy_bytes, bool is_off = false,
              DeviceSampler* devices = nullptr, const segment::SegmentWriter* segment = nullptr);

  // Must be called if other ranks may measure the same tensors (replicas) or parts of them. Fixes the
  // interval, which must be equal on all ranks, since the agent compares and joins their records of one step.
  void share_interval() { has_replicas_ = true; }

  // Implements foreshock_name_weights. Set-up: may map memory.
  int name_tensors(const foreshock_weight* weights, size_t count);

  // Gets the numbers of at most `room` tensors due in the `steps` steps from `step` on, which the trainer
  // reports as one step. Returns how many; 0 if the budget cannot pay for them, since passing a tensor takes
  // time. With replicas, the tensors with the fewest snapshots come first, since the ring may fill up.
  size_t find_due(int64_t step, int64_t steps, uint32_t* numbers, size_t room);
  // Returns the next step in which a tensor may be due, if the interval stays the same. Must be called right
  // after find_due().
  int64_t next_due() const { return turns_.next_due(); }
  // Counts as skipped all tensors due in the `steps` steps from `step` on, in which find_due() could not be
  // called. Does nothing if find_due() has counted `step`.
  void count_missed(int64_t step, int64_t steps);

  // The trainer passes the due tensors before and after the optimizer's work. before_step() copies host
  // tensors, so that after_step() can measure the change.
  void before_step(const foreshock_weight_state* states, size_t count, int64_t step);
  void after_step(const foreshock_weight_state* states, size_t count, int64_t step);

  // Writes a record of each look at a gradient. Looks for which the ring has no room are dropped.
  void write_gradient_looks(const foreshock_gradient_look* looks, size_t count, int64_t step);

  // Sets the source of step numbers. Ranks whose numbers have different sources are not compared.
  void set_step_source(uint32_t source) { step_source_ = source; }

  struct Spent {
    uint64_t host_ns = 0;    // host time of this call
    uint64_t before_ns = 0;  // earlier host time, for launching the work whose results have arrived
    uint64_t device_ns = 0;  // time of that work on the trainer's stream
  };
  // Writes the records of results that have arrived from devices since the last call.
  Spent collect();
  // Returns the host time since the last call that was spent on launching device measurements. This time must
  // not be charged yet: collect() returns it again as before_ns, with the rest of the measurements' cost.
  uint64_t take_deferred() { return std::exchange(deferred_ns_, 0); }

  // Ends a step and returns what was measured in it. `is_brief`: nothing was measured in the step; what was
  // measured since its end belongs to a later step.
  MeasuredWeights end_step(bool is_brief);
  // Sets what is allowed until the end of the next step. Returns whether the interval has changed.
  bool allow(const WeightAllowance& allowed);

 private:
  struct Weight {
    char name[160];
    char layer[32];
    int64_t shape[segment::kTensorDims], offset[segment::kTensorDims], part[segment::kTensorDims];
    uint32_t dims;
    uint64_t elements;       // in this rank's part; 0: never measured
    uint64_t snapshots;      // number of snapshots so far
    uint64_t record_bytes;   // ring bytes to reserve for the next record
    uint64_t element_bytes;  // size of an element when the tensor was last passed
    uint32_t turns_to_skip;  // turns that are still skipped because a record did not fit
    uint32_t last_skip;      // turns_to_skip after the last record that did not fit; 0: a record fit since
    CopiesBeforeStep::Copy copy;
    ElementSample sample;  // elements at the last snapshot of a host tensor
  };

  // A record under construction: the parts of fixed size, which are copied into the ring at the end, and the
  // place in the ring, which gets the histogram. The ring is never read.
  struct Draft {
    segment::TensorRecord record;
    double reductions[segment::kTensorReductionCount], optimizer[segment::kOptimizerNumbers];
    char* place;
    uint64_t room;  // bytes available to the record

    char* histogram() const { return place + kHistogramOffset; }
    uint64_t histogram_room() const { return room - kHistogramOffset; }
  };
  // Offsets in a record.
  static constexpr uint64_t kReductionsOffset = (sizeof(segment::TensorRecord) + 7) / 8 * 8;
  static constexpr uint64_t kOptimizerOffset =
      kReductionsOffset + segment::kTensorReductionCount * sizeof(double);
  static constexpr uint64_t kHistogramOffset = kOptimizerOffset + segment::kOptimizerNumbers * sizeof(double);

  Weight* weight(uint32_t number) { return reinterpret_cast<Weight*>(table_.data()) + number; }
  int follow(const foreshock_weight* weights, size_t count);
  // `begins_at`: the share of the model's elements that belong to the tensors before this one.
  void add(const foreshock_weight& given, double begins_at);
  // Counts tensors that have become due, and due tensors that the trainer did not pass.
  void count_turns(const WeightSchedule::DueCount& turns);
  void share_copies(const uint32_t* numbers, size_t count);
  bool can_measure(const foreshock_weight_state& state, segment::TensorSkip* why);
  void measure(const foreshock_weight_state& state, int64_t step);  // on host or device; else counts why not
  void measure_on_host(const foreshock_weight_state& state, int64_t step);

  // begin_record() begins a record in the ring, publish_record() completes it. checksum_room(): bytes kept
  // free for checksums.
  bool begin_record(const Weight& weight, Draft* draft);
  void write_checksum(const foreshock_weight_state& state, int64_t step);
  uint64_t checksum_room() const;
  void publish_record(Weight* weight, Draft* draft, uint64_t end);

  // For device tensors. settle() ends a measurement that was sent; false: its results may still arrive.
  void send(const foreshock_weight_state& state, int64_t step);
  void write_device_record(const PendingWeight& pending, char* results);
  size_t pack(const PendingWeight& pending, char* payload, Draft* draft);
  bool settle(PendingWeight* pending, Spent* spent);
  void describe(const Weight& weight, uint32_t number, DType type, int64_t step,
                segment::TensorRecord* record) const;
  static bool is_on_device(const foreshock_weight_state& state) {
    return state.parameter.device_type == FORESHOCK_DEVICE_CUDA;
  }
  void reduce(const Weight& weight, const foreshock_tensor& values, DType type, int64_t step,
              double* reductions) const;
  // A tensor skips turns after its record did not fit into the ring. use_up_skip() returns whether the tensor
  // skips this turn, and counts this turn as skipped.
  bool use_up_skip(Weight* weight);
  void skip_next_turns(Weight* weight, uint64_t room);

  segment::TensorWriter writer_;
  WeightAllowance allowed_;
  WeightSchedule turns_;
  CopiesBeforeStep copies_;
  HistogramPacker packer_;
  MmapBuffer table_;                                      // of Weight
  uint64_t most_copy_bytes_ = 0;                          // limit for copies of tensors
  uint32_t count_ = 0;                                    // tensors in table_
  uint32_t rank_tensors_ = 0;                             // tensors with a part on this rank
  uint64_t rank_bytes_ = 0;                               // size of these parts, at 4 bytes an element
  uint64_t unfollowed_[segment::kTensorUnfollowed] = {};  // tensors that are not followed, by reason
  bool is_off_ = false;
  bool has_replicas_ = false;    // there are other ranks, which may hold replicas
  uint64_t copy_share_ = 0;      // memory for the copy of one tensor in this step, in bytes
  int64_t copy_step_ = -1;       // the step for which before_step() made the copies
  uint32_t step_source_ = 0;     // FORESHOCK_STEP_...
  uint64_t bytes_measured_ = 0;  // bytes measured since the last end_step() that was not brief

  DeviceSampler* devices_ = nullptr;
  PendingWeights pending_;
  uint64_t deferred_ns_ = 0;   // see take_deferred()
  uint64_t ended_steps_ = 0;   // number of ended steps
  uint64_t host_records_ = 0;  // records written for host tensors
  int64_t host_step_ = -1;     // step of the last of these records
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_WEIGHTS_H_
