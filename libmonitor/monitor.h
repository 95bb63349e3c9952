// The core of libforeshock.so: receives calls, steps, losses, gradients and weights from the hooks, and
// writes samples and step records to the segment, a file in shared memory that the agent process reads. Read
// this file first. monitor.cpp decides what is sampled and charges steps, monitor_samples.cpp takes the
// sample of a call after its operation, monitor_steps.cpp has the rest.
//
// A sample of an attention call is a slice of rows: up to 16 query rows with all keys that they see. A
// backward call may add a slice of key positions (columns): up to 16 keys with all query rows, for dK and dV.
// The open step has not ended. A pending step has ended, but losses or norms of it are still on a device.
#ifndef FORESHOCK_LIBMONITOR_MONITOR_H_
#define FORESHOCK_LIBMONITOR_MONITOR_H_

#include <optional>

#include "libmonitor/base.h"
#include "libmonitor/call.h"
#include "libmonitor/coverage.h"
#include "libmonitor/device_sampler.h"
#include "libmonitor/device_scalars.h"
#include "libmonitor/layers.h"
#include "libmonitor/ledger.h"
#include "libmonitor/process.h"
#include "libmonitor/sampling.h"
#include "libmonitor/step_numbers.h"
#include "libmonitor/weights.h"
#include "segment/layout.h"

namespace foreshock {

struct SampledCall;  // defined in monitor_samples.cpp

// A call for which enter() returned nonzero and which has not ended.
struct OpenCall {
  int32_t op = -1;             // number of the registered operation; -1: the thread has no open call
  bool sizes_segment = false;  // no segment exists yet: leave() creates it, with slots that fit this call
  uint64_t call = 0;           // number within the step
  int ordinal = -1;            // layer number from the order of calls (OrdinalFollower); -1: unknown
  bool needs_gradient = false;
};
extern constinit thread_local OpenCall t_open;  // the call that this thread has begun and not ended

// Of a thread's calls of an operation, one in kCallsPerClockRead reads a coarse clock. If the counts were not
// written into the segment for kCountsAgeNs, it writes them. One in kCallsPerSwitchRead reads whether
// sampling is paused. Both are powers of two.
inline constexpr uint64_t kCallsPerClockRead = 128, kCallsPerSwitchRead = 1024;
inline constexpr uint64_t kCountsAgeNs = 100'000'000;
// The control file is read at the begin of a step that is to be sampled, at the end of a step that is not
// brief, and at begin and end of any other step if it was last read at least this long ago.
inline constexpr uint64_t kControlAgeNs = 1'000'000;

// Most public functions implement the function of the C interface (foreshock/hook.h) with the same name. Any
// thread may call them. If a function cannot take a lock at once, it drops its data instead of waiting.
// [[gnu::hot]]: part of the end of a brief step (see is_brief). The linker puts these functions together.
class Monitor {
 public:
  // Begins an attention call. Returns nonzero if the caller must describe the call with leave() or skip().
  // hook.cpp calls enter() for few calls of steps that are not sampled: it counts most of them itself.
  int enter(int32_t op, uint32_t flags);
  void leave(const foreshock_attention_call& call);
  void skip(int32_t op, uint32_t reason);

  [[gnu::hot]] void end_step(const foreshock_step& step);
  void skip_step();            // foreshock_step_skipped
  void count_missing_norms();  // foreshock_gradients_too_many
  // foreshock_skips_unseen: from now on the number of skipped steps is recorded as unknown.
  void mark_skips_unknown() { skips_unseen_.store(true, std::memory_order_relaxed); }
  void observe_loss(double value, uint32_t source);
  void observe_root_divisor(double divisor);  // as foreshock_observe_root_divisor()
  void loss_is_of(const char* name);
  void observe_loss_sum(double sum, double weight);
  bool fetch(const foreshock_tensor* values, size_t count, void* stream, uint32_t what, uint64_t* numbers);
  void observe_fetched_loss(uint64_t number, uint64_t scale, uint32_t source);
  void observe_fetched_loss_sum(uint64_t sum, uint64_t weight);
  void fetched(uint64_t number, double value);
  void skip_step_if(uint64_t number);
  // At the end of the process: completes records whose device results have arrived. Reads only host memory.
  void finish_at_exit();
  void note_unseen(const char* name, uint32_t evidence);
  int observe_scalars(const foreshock_scalar* scalars, size_t count);
  [[gnu::hot]] bool step_is_sampled();
  void begin_graph();                         // foreshock_graph_begins
  bool end_graph(PassCalls* calls);           // foreshock_graph_ends
  void launch_graph(const PassCalls* calls);  // foreshock_graph_launched; null: unknown calls
  void set_kernel_finder(KernelCounter::Finder find) { find_cupti_ = find; }  // for --count-kernels

  int name_parameters(const foreshock_parameter* parameters, size_t count);
  int name_mixers(const foreshock_mixer* mixers, size_t count);
  void observe_gradients(const foreshock_gradient* gradients, size_t count);

  int name_weights(const foreshock_weight* weights, size_t count);
  [[gnu::hot]] size_t weights_due(uint32_t* numbers, size_t room);
  void observe_weights(const foreshock_weight_state* states, size_t count, uint32_t when);
  void observe_gradient_looks(const foreshock_gradient_look* looks, size_t count);

 private:
  void store_unnamed_parameters();
  // Creates the segment if this process has no segment. Returns true if this call created it.
  bool ensure_segment(uint64_t slot_bytes_needed);
  void reset();
  int enter_unarmed(int32_t op, uint32_t flags);
  void count_call(const Counting& counting, int32_t op);
  void publish_old_counts(const Counting& counting, int32_t op);
  void refresh_control(uint64_t now_ns, uint64_t age_ns);
  void begin_step();
  void read_switches();
  void charge_devices(const Counting& counting);
  uint64_t collect_weights(const Counting& counting);
  void set_up_devices(const Counting& counting);
  uint64_t interval_at(int64_t step);
  uint64_t burst_at(int64_t step) const;
  // The slices copied for one call.
  struct CopiedSlices {
    uint64_t bytes = 0;    // 0: no slice
    bool is_cold = false;  // a slot was used for the first time, which costs more (page faults)
  };
  int take_sample(const Counting& counting, const foreshock_attention_call& call, const OpenCall& open,
                  uint32_t pass, CopiedSlices* copied);
  int put_slice(const Slice& slice, const SlicePlan& plan, const Counting& counting, SampledCall* call,
                CopiedSlices* copied);
  segment::ColumnsSkip plan_columns_of(const segment::Slot& rows, SampledCall* call);
  void add_gradient(const foreshock_gradient& gradient);
  uint64_t send_gradients(const foreshock_gradient* gradients, size_t count);
  void mark_sampled_by_gradients();
  void name_layer(const foreshock_attention_call& call, const OpenCall& open, segment::Slot* slot);
  void mark_layer(const foreshock_attention_call& call, const OpenCall& open, uint32_t pass, int reason);
  bool find_number(uint64_t number, double* value) const;
  void store_skipped_in_row(uint64_t count);
  void apply_events(const PendingStep& step, bool with_losses);
  void complete_record(PendingStep* step);
  void complete_pending(bool is_step_end);
  bool complete_open();
  int64_t ending_step() const;
  bool is_due(int64_t step) const;
  void expect_slice();
  uint32_t free_slices() const;
  AgentForecast::Report take_agent_report();
  // A step that has ended and whose record is written.
  struct EndedStep {
    const segment::StepRecord& record;
    CallTotals totals;  // at the end of the step, without `own_ns`
    uint64_t end_ns;    // monotonic time
    uint64_t own_ns;    // time of end_step(), and of the calls that were only counted
  };
  [[gnu::hot]] bool is_brief(const foreshock_step& step, uint64_t duration_ns);
  void take_logged_and_norm(bool is_late, segment::StepRecord* record);
  void settle_step(const EndedStep& ended);
  void settle_brief_steps();
  void charge_step(const Ledger::Step& step, bool is_brief, const AgentForecast::Report& report);
  [[gnu::hot]] void advance(const EndedStep& ended);
  // A brief step has only counted calls and losses on the host; its end does little work. A function that
  // stores other data must call note_event() under the lock of the data: the step is then not brief.
  void note_event() { is_eventful_.store(true, std::memory_order_relaxed); }
  void count_kernels();
  // Whether observations must wait in pending_steps_, because earlier numbers are still on a device.
  bool must_wait() { return pending_steps_.has_waiting() || pending_steps_.open().event_count > 0; }
  // Whether the next slot to be used has never been written.
  bool is_cold() const { return ticket_.load(std::memory_order_relaxed) < g_process.writer().slots(); }

  // Limit of numbers read back from devices per step. A kernel writes each into a cell in host memory. Cells
  // serve pending steps, the present one, and one completed without its numbers, which may still arrive.
  static constexpr uint64_t kMaxNumbersPerStep = kScalarCells / (PendingSteps::kMost + 2);

  // Locks (TryLock). Each protects the members that its comment names.
  alignas(64) std::atomic_flag clock_busy_;  // the step state below
  std::atomic_flag layer_busy_;              // ordinal_ and the names in layers_
  std::atomic_flag loss_busy_;               // loss_ and pending_steps_, except the open step's gradients
  std::atomic_flag scalars_busy_;            // scalars_ and logged_norm_
  std::atomic_flag cost_busy_;               // slice_cost_
  std::atomic_flag weights_busy_;            // weights_
  std::atomic<uint64_t> ticket_{0};  // the last ticket given out; every use of a slot has its own ticket
  std::atomic<uint64_t> control_read_ns_{0};    // when the control file was last read
  std::atomic<uint64_t> counts_written_ns_{0};  // when counts were last written between steps; a coarse clock

  // Step state. Written under clock_busy_ (members marked *: also without). Sampled calls read the atomics.
  // The end of a brief step uses members of this first part only, so it touches few cache lines.
  std::atomic<int64_t> step_{-1};       // number of the step to which present calls belong; -1: unknown
  std::atomic<int64_t> next_step_{-1};  // the step that begins with the next forward call
  std::atomic<int64_t> no_weights_before_{0};  // * no weight is due before this step
  uint64_t last_tick_ns_ = 0;                  // end of the last step
  uint64_t unreported_ns_ = 0;                 // time spent in end_step() after its record was written
  uint32_t settled_source_ = 0;           // FORESHOCK_STEP_...: source of the last step that was not brief
  std::atomic<bool> is_eventful_{false};  // * see note_event()
  bool may_be_brief_ = false;  // the next steps may be brief; set at the end of a step that is not brief
  bool step_was_sampled_ = false;
  std::atomic<bool> begins_in_backward_{false};  // * no forward call outside of backward passes is seen
  bool steps_are_explicit_ = false;  // set once the trainer reports a step; then detected steps are ignored
  std::atomic<int64_t> period_steps_{1};  // steps from one report to the next: n if every n-th is reported
  std::atomic<uint64_t> interval_{8};     // sampling interval in this step, in steps
  CallTotals last_totals_;                // totals at the end of the last step
  StepStride stride_;                     // estimates period_steps_
  std::atomic<uint64_t> calls_last_step_{0};
  std::atomic<uint64_t> skipped_steps_{0};   // *
  std::atomic<uint64_t> skipped_in_row_{0};  // *; since the last step, those known at once
  uint32_t brief_steps_ = 0;                 // number of brief steps in brief_
  std::atomic<bool> skips_unseen_{false};    // *
  LossTracker loss_;                         // under loss_busy_
  // The brief steps whose costs are not charged yet.
  static constexpr uint32_t kMostBriefSteps = 7;  // the step after so many is not brief, and charges them
  static constexpr uint64_t kLongestBriefNs = 100'000'000;  // a longer step is not brief
  struct {
    uint64_t duration_ns, cost_ns;
  } brief_[kMostBriefSteps] = {};

  // The rest of the step state.
  uint64_t base_interval_ = 8;  // sampling interval outside of bursts (denser sampling after a warning)
  std::atomic<uint64_t> call_in_step_{0};            // * calls in this step so far
  std::atomic<uint32_t> free_slots_{0};              // when the step began
  std::atomic<uint32_t> slots_per_slice_{1};         // * slots of the last slice of rows
  std::atomic<uint32_t> slots_per_columns_{0};       // * slots of the last slice of key positions; 0: none
  std::atomic<uint32_t> affordable_slices_{0};       // slices of rows that the budget pays for in this step
  std::atomic<bool> columns_are_affordable_{false};  // the budget also pays for slices of key positions
  std::atomic<int64_t> column_slots_{0};             // * slots left for key positions in this step
  std::atomic<uint64_t> slices_ns_{0};               // * time spent on slices since the last settle_step()
  bool had_segment_ = false;                         // this process or a parent has had a segment
  Ledger ledger_;
  SliceCost slice_cost_;
  segment::AgentCost last_agent_cost_ = {};  // the agent's totals at the last step
  uint64_t gradients_ns_ = 0;                // time charged for gradients on devices since settle_step()
  // The open step, and ended steps whose numbers are still on a device. clock_busy_ protects the gradients of
  // the open step; loss_busy_ protects everything else. Ending a step needs both locks.
  PendingSteps pending_steps_;
  TrainerReadbacks fetched_;                   // values passed to fetched(); under clock_busy_ and loss_busy_
  std::atomic<bool> loss_is_reported_{false};  // the trainer itself has reported a loss
  std::atomic<uint64_t> numbers_requested_{0};  // copies of numbers from devices since the last step record
  std::atomic<uint64_t> host_numbers_{0};       // number of losses for which fetch() could launch no kernel
  Scalars scalars_;
  std::optional<double> logged_norm_;  // gradient norm logged since the last step
  bool norm_is_seen_ = false;  // set once a norm was reported or measured; then logged norms are ignored
  UnhookedAttention unseen_;
  CudaGraphCounter graphs_;
  KernelCounter kernels_;  // under clock_busy_
  KernelCounter::Finder find_cupti_ = nullptr;
  OrdinalFollower ordinal_;  // derives layer numbers from the order of calls
  DeviceSampler devices_;
  LayerTable layers_;
  uint64_t parameters_without_room_ = 0;  // those that layers_ could not store in the last name_parameters()
  WeightSampler weights_;
  FirstColumns first_columns_;            // the layers that have given a slice of key positions
  std::atomic<uint64_t> weights_ns_{0};   // time spent on weights since settle_step()
  std::atomic<uint64_t> launches_ns_{0};  // time for launching kernels for weights since settle_step()
  std::atomic<bool> has_observed_weights_{false};  // the trainer has described weights since settle_step()
  uint64_t set_up_ns_ = 0;        // time spent on setting up devices since the last step record
  DeferredSteps deferred_steps_;  // steps in which weights_due() could not lock weights_busy_
};

extern Monitor g_monitor;

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_MONITOR_H_
