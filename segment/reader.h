// The agent's side of a segment: reads regions with pread, without mapping them, and writes the control file.
// One thread.
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
  // Opens `<directory>/<name>.seg` and its .ctl. Returns null if they cannot be used; *why is then the
  // reason, as one sentence.
  static std::unique_ptr<SegmentReader> open(const std::string& directory, const std::string& name,
                                             std::string* why);
  // Does the same as open() with files that are already open; the control file must be open for reading and
  // writing. Takes ownership of both descriptors. A negative one means that the file could not be opened.
  static std::unique_ptr<SegmentReader> adopt(const std::string& name, int segment_file, int control_file,
                                              std::string* why);
  ~SegmentReader();
  SegmentReader(const SegmentReader&) = delete;
  SegmentReader& operator=(const SegmentReader&) = delete;

  const std::string& name() const { return name_; }
  const Header& header() const { return header_; }

  Identity identity() const;
  // Returns the argument of exit(), or nothing while the process runs or if it ended in another way.
  std::optional<int> exit_status() const;
  std::vector<Op> ops() const;
  std::vector<Layer> layers() const;
  Layer layer(uint32_t index) const;  // all zero if there is no such layer
  // Returns the names of StepRecord::scalars known so far, in their order.
  std::vector<std::string> scalar_names() const;
  std::vector<UnseenName> unseen_names() const;
  Coverage coverage() const;
  Totals totals() const;

  // Returns the step records that are not consumed yet. After a restart of the agent they begin at the cursor
  // in the control file. They end before a record with numbers that have not arrived from a device. The wait
  // for such a record ends when kMostPendingSteps later records exist, or when its age is kMostPendingSteps
  // times its duration (at least 1 s).
  std::vector<StepRecord> unread_steps() { return unread_steps(now_ns()); }
  std::vector<StepRecord> unread_steps(uint64_t now_ns);
  // Consumes the result of the last unread_steps(). Records that were overwritten before they could be read
  // are added to steps_lost().
  void consume_steps();
  // Calls unread_steps(), then consume_steps().
  std::vector<StepRecord> new_steps() { return new_steps(now_ns()); }
  std::vector<StepRecord> new_steps(uint64_t now_ns);
  // Stops waiting for pending records. To be called after the trainer has ended.
  void wait_no_more() { waits_ = false; }
  uint64_t steps_lost() const { return control_.steps_lost; }
  // Returns the records consumed over the life of the segment, by all its agents.
  uint64_t steps_taken() const { return control_.step_cursor - control_.steps_lost; }
  // Returns the last consumed record. Its sequence is 0 if there is none or it was overwritten.
  StepRecord last_step() const;

  // A complete slice that is not consumed yet.
  struct Ready {
    uint32_t slot = 0;   // the slot of its first part
    uint32_t parts = 1;  // number of slots
    uint64_t ticket = 0;
    const char* why = nullptr;  // set if the slice cannot be used; then consume it as lost
    SlotView view;              // borrows from an inner buffer until the next call
  };
  // Finds the next complete slice. Returns false if there is none. Costs only one read if nothing was
  // published since it last returned false.
  bool next_ready(Ready* ready);

  // Makes next_ready() read every slot again. Needed if a writer may have died between publishing a slot and
  // counting it.
  void look_again() { look_again_ = true; }

  // Returns slices that a writer left incomplete. Must be called only after the trainer has ended.
  std::vector<Ready> torn();

  // Consume a slice. Only slices of rows are counted, so that each call is counted once.
  void consume_judged(const Ready& ready);
  void consume_lost(const Ready& ready, Lost reason);

  // Counts in the control file, summed over all agents of this segment.
  uint64_t judged(uint32_t pass) const;
  uint64_t lost(uint32_t pass, Lost reason) const;

  // A tensor record that is not consumed yet.
  struct ReadyTensor {
    const char* why = nullptr;  // set if the record cannot be used
    TensorView view;            // borrows from an inner buffer until the next call
  };
  // Finds the next tensor record. Returns false if there is none. If the end of an unusable record is
  // unknown, everything written so far is skipped.
  bool next_tensor(ReadyTensor* ready);
  // Consumes the record, so that the trainer can reuse its space.
  void consume_tensor();
  TensorRing tensor_ring() const;  // all zero if there is no ring

  // Whether the trainer holds its lock. Also returns false if the file was replaced after it was opened.
  bool is_locked() const;

  // Whether neither the agent nor `foreshock pause` has switched sampling off.
  bool switched_on() const;
  void set_interval(uint64_t interval, int64_t from_step);
  // The burst covers the steps [from_step, until_step).
  void set_burst(uint64_t interval, int64_t from_step, int64_t until_step);
  // Publishes what the agent has spent on this rank. The trainer's budget pays for it.
  void set_agent_cost(const AgentCost& cost);
  // Publishes `advice`; its `sequence` is ignored and set here.
  void set_advice(Advice advice);
  void set_agent_pid(uint64_t pid);

 private:
  SegmentReader() = default;
  static uint64_t now_ns();
  static bool counts(const Ready& ready);
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
    uint64_t newest = 0, count = 0;  // of the records that unread_steps() returned last
  } unread_;
  uint32_t next_slot_ = 0;
  Progress progress_ = {};  // value when next_ready() last found all slots consumed
  bool look_again_ = true;
  bool waits_ = true;  // unread_steps() waits for pending records
  mutable std::vector<std::byte> region_;
  std::vector<std::byte> buffer_;
  JoinedSlice joined_;
  std::vector<std::byte> tensor_;
  uint64_t next_tensor_ = 0;  // the cursor after the record in tensor_
};

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_READER_H_
