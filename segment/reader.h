// The agent's side of a segment: reads regions with pread, never maps, and answers in the control file. One
// thread.
#ifndef FORESHOCK_SEGMENT_READER_H_
#define FORESHOCK_SEGMENT_READER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "segment/parser.h"

namespace foreshock::segment {

class SegmentReader {
 public:
  // Opens `<directory>/<name>.seg` and its .ctl. Null when they cannot be followed; *why says it in one
  // sentence.
  static std::unique_ptr<SegmentReader> open(const std::string& directory, const std::string& name,
                                             std::string* why);
  // The same for files that are open already, the control file to read and write. Takes both descriptors
  // over; a negative one is a file that could not be opened.
  static std::unique_ptr<SegmentReader> adopt(const std::string& name, int segment_file, int control_file,
                                              std::string* why);
  ~SegmentReader();
  SegmentReader(const SegmentReader&) = delete;
  SegmentReader& operator=(const SegmentReader&) = delete;

  const std::string& name() const { return name_; }
  const Header& header() const { return header_; }

  Identity identity() const;
  // What the process gave exit(); nothing while it lives, and when it ended in another way.
  std::optional<int> exit_status() const;
  std::vector<Op> ops() const;
  std::vector<Layer> layers() const;
  Layer layer(uint32_t index) const;  // all zero where there is none
  std::vector<std::string> scalar_names()
      const;  // of StepRecord::scalars, in their order; those known so far
  std::vector<UnseenName> unseen_names() const;
  Coverage coverage() const;
  Totals totals() const;

  // Step records that nobody has consumed; after a restart of the agent they begin where the control file
  // says. They end before one whose numbers are on their way from a device, which is waited for: for
  // kMostPendingSteps others, or so many times as long as it took, as the clock of records tells.
  std::vector<StepRecord> unread_steps() { return unread_steps(now_ns()); }
  std::vector<StepRecord> unread_steps(uint64_t now_ns);
  // What unread_steps() gave last was dealt with; those overwritten before it are added to steps_lost().
  void consume_steps();
  // Both at once.
  std::vector<StepRecord> new_steps() { return new_steps(now_ns()); }
  std::vector<StepRecord> new_steps(uint64_t now_ns);
  // The trainer is gone: what is pending stays so.
  void wait_no_more() { waits_ = false; }
  uint64_t steps_lost() const { return control_.steps_lost; }
  // Taken over the life of the segment, by all agents it has had.
  uint64_t steps_taken() const { return control_.step_cursor - control_.steps_lost; }
  // The last record that was taken; sequence 0 when there is none or it was overwritten.
  StepRecord last_step() const;

  // The next slot that holds a finished slice this agent has not consumed, or false; of a slice in several
  // slots it is the first. Costs one read when nothing was published since the last time that it was false.
  // The view borrows from an inner buffer until the next call. `why` is set when the slice cannot be used:
  // consume it as lost.
  struct Ready {
    uint32_t slot = 0;
    uint32_t parts = 1;  // slots that it takes
    uint64_t ticket = 0;
    const char* why = nullptr;
    SlotView view;
  };
  bool next_ready(Ready* ready);

  // Makes next_ready() look at every slot again: a writer may have died after it published and before it
  // counted.
  void look_again() { look_again_ = true; }

  // Slices left odd by a writer; meaningful once the trainer is gone.
  std::vector<Ready> torn();

  // A slice counts once, however many slots it took.
  void consume_judged(const Ready& ready);
  void consume_lost(const Ready& ready, Lost reason);

  // Sums of what the control file says, over all agents this segment has had.
  uint64_t judged(uint32_t pass) const;
  uint64_t lost(uint32_t pass, Lost reason) const;

  // The next record of a tensor that this agent has not taken, or false. The view borrows from an inner
  // buffer until the next call. `why` is set when it cannot be used; when where it ends is not known either,
  // all that was written is given up.
  struct ReadyTensor {
    const char* why = nullptr;
    TensorView view;
  };
  bool next_tensor(ReadyTensor* ready);
  // It was dealt with: its room is the trainer's again.
  void consume_tensor();
  TensorRing tensor_ring() const;  // all zero where there is none

  // Whether the trainer holds its lock. False as well when the file was replaced under us.
  bool is_locked() const;

  bool switched_on() const;
  void set_interval(uint64_t interval, int64_t from_step);
  // From one step on until before another one.
  void set_burst(uint64_t interval, int64_t from_step, int64_t until_step);
  // What the agent has spent on this rank, in nanoseconds of one of its cores: the trainer's budget pays for
  // it.
  void set_agent_cost(uint64_t nanoseconds);
  // `advice.sequence` is set here.
  void set_advice(Advice advice);
  void set_agent_pid(uint64_t pid);

 private:
  SegmentReader() = default;
  static uint64_t now_ns();
  bool is_waited_for(const StepRecord& record, uint64_t newest, uint64_t now_ns) const;
  bool read_step(const StepRecord& seen, StepRecord* whole) const;
  bool read_region(RegionId id, std::vector<std::byte>* into) const;
  bool read_few_steps(uint64_t next) const;
  uint64_t slot_offset(uint32_t slot) const;
  uint64_t sequence_of(uint32_t slot) const;
  uint32_t slots() const { return static_cast<uint32_t>(header_.regions[kSlots].count); }
  Slot header_of(uint32_t slot) const;
  bool read_slot(uint32_t slot, uint64_t sequence, SlotView* view, const char** why);
  bool read_slice(uint32_t slot, uint64_t sequence, Ready* ready);
  bool read_parts(Ready* ready);
  bool is_orphan(const Slot& tail) const;
  bool is_tail_of_another(uint64_t ticket) const;
  uint32_t parts_of(const Slot& head, uint64_t ticket) const;
  void consume(const Ready& ready);
  void store_consumption(uint32_t slot);
  void move_tensor_cursor(uint64_t to);

  std::string name_;
  int segment_ = -1;
  int control_file_ = -1;
  uint64_t device_ = 0, inode_ = 0;
  Header header_ = {};
  Control control_ = {};
  Consumption consumption_[kMaxSlots] = {};
  struct {
    uint64_t newest = 0, count = 0;  // of the step records that are not consumed yet
  } unread_;
  uint32_t next_slot_ = 0;
  Progress progress_ = {};  // when all slots were last found consumed
  bool look_again_ = true;
  bool waits_ = true;
  mutable std::vector<std::byte> region_;
  std::vector<std::byte> buffer_;
  JoinedSlice joined_;
  std::vector<std::byte> tensor_;
  uint64_t next_tensor_ = 0;  // the cursor once the record in tensor_ is consumed
};

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_READER_H_
