// The agent's side of a segment, the shared memory of one trainer process (segment/layout.h): functions that
// parse its bytes (parser.cpp), and SegmentReader (reader.cpp), which reads the regions of its .seg file and
// writes its .ctl file, the control file. The bytes may be torn (changed while they were read), truncated or
// hostile. Parsing functions that return const char* return null on success, else a reason (a static string).
#ifndef FORESHOCK_SEGMENT_READER_H_
#define FORESHOCK_SEGMENT_READER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "segment/layout.h"

namespace foreshock::segment {

using Bytes = std::span<const std::byte>;

// Parses the header in `bytes`, the first page of a file of `file_size` bytes. On success every region is
// inside the file, its number of records is in range (0 for an unused region), and its records have the size
// of their struct. Only records of the slots and of the ring of tensors may be larger, up to a limit.
const char* parse_header(Bytes bytes, uint64_t file_size, Header* header);

// Returns the text of a struct's field, up to the first NUL or the end of its array.
template <size_t N>
std::string text_of(const char (&field)[N]) {
  size_t length = 0;
  while (length < N && field[length] != '\0') ++length;
  return std::string(field, length);
}

// Returns record `index` of a region of records T, or zeros if the region has no such record.
template <class T>
T record_at(Bytes region, uint64_t index) {
  T value = {};
  if (index < region.size() / sizeof(T)) std::memcpy(&value, region.data() + index * sizeof(T), sizeof(T));
  return value;
}

// Sums of the counters in the ThreadBlocks of all threads.
struct Totals {
  uint64_t calls[kMaxOps] = {};      // attention calls, by registered operation
  uint64_t unsampled[kPasses] = {};  // calls by pass: 0 forward, 1 backward
  uint64_t sampled[kPasses] = {};
  uint64_t skipped[kPasses][kSkipReasons] = {};
  uint64_t hook_ns = 0;  // the monitor's time in sampled calls
  uint64_t step_ns = 0;  // the monitor's time at step ends and on gradients
  bool operator==(const Totals&) const = default;
};
Totals parse_threads(Bytes region);

// Returns the step records after number `cursor`, the last one already read, whose checksum fits, oldest
// first. Sets *lost to the number of overwritten or damaged records between `cursor` and the newest returned
// record.
std::vector<StepRecord> parse_steps(Bytes region, uint64_t cursor, uint64_t* lost);

struct SlotView {  // a parsed slot
  Slot header;
  Bytes payload[kPayloads];
};
// Computes the bytes that each payload of a slot must have for its dimensions; 0 if the payload is absent.
void payload_sizes(const Slot& slot, uint64_t (&sizes)[kPayloads]);

// Parses a slot. On success header and payloads agree: every offset and size fits, and dimensions, limits and
// indices are in range. If the slice is stored in several slots, the view has one part; JoinedSlice joins the
// parts. The payloads of the view point into `bytes`.
const char* parse_slot(Bytes bytes, SlotView* view);

// Limit of the steps between two snapshots of a tensor. A record with more is invalid.
inline constexpr uint64_t kMostTensorInterval = uint64_t{1} << 32;

struct TensorView {
  TensorRecord record;
  Bytes payload[kTensorPayloads];
};

// Parses the first 16 bytes of a record in the ring of tensors: its length, and whether it is a filler, which
// takes the space before the ring's end that is too small for the next record. `unread`: how many bytes the
// trainer has written from the record's start on. `to_end`: bytes from the record's start to the ring's end.
const char* parse_tensor_length(Bytes bytes, uint64_t unread, uint64_t to_end, uint64_t* length,
                                bool* is_filler);

// Parses a whole tensor record. On success its shapes agree with each other and with the number of elements,
// and the payloads are inside the record. The form of the histogram is possible for the storage format (no
// bins of a 16-bit format, for example). The histogram's size is checked for the forms kNone (absent) and
// kValues (the values themselves). The content of payloads is not checked. The payloads of the view point
// into `bytes`.
const char* parse_tensor(Bytes bytes, TensorView* view);

// Joins the parts of a slice that is stored in several slots, as if one slot had held it. Call begin(), then
// add() until is_whole(), then take(). An object is reused for many slices; its memory grows until
// keep_at_most() is called. One thread.
class JoinedSlice {
 public:
  // Starts a slice of at least two parts with its part 0. `most_bytes` limits the payloads of the slice.
  // After an error, begin() must come next.
  const char* begin(const SlotView& first, uint64_t most_bytes);

  const char* add(const SlotView& part);  // adds the next part, which is borrowed for the call only

  // Frees the memory if it exceeds `bytes`. An earlier result of take() must not be used afterwards.
  void keep_at_most(size_t bytes) {
    if (bytes_.capacity() > bytes) bytes_ = {};
  }

  bool is_whole() const { return next_part_ == whole_.header.parts; }

  // Returns the joined slice; `parts` of its slot is 0, as in a slice that lay in one slot. Its payloads are
  // lost with the next begin().
  SlotView take();

 private:
  std::vector<std::byte> bytes_;
  SlotView whole_;
  uint32_t next_part_ = 0;    // number of the next part
  uint64_t joined_keys_ = 0;  // keys copied so far (in a slice of key positions: rows)
};

// Converts a slice of a packed batch, which concatenates sequences, into the slice that a call with only the
// sampled sequence would have given. The trainer plans such a slice for the longest sequence; the extent of
// the sampled one, Slot::told, comes from the device. Dimensions, limits and positions then follow from it,
// and the payloads are cut to these dimensions. The result has no rows if the device copied no rows, or if a
// row may see no key, for which kernels define no result. Other slices stay unchanged.
const char* settle_packed(SlotView* view);

// Reads the .seg file with pread, without mapping it. To consume a slice, step record or tensor record means
// to store in the control file that the agent is done with it. The trainer reuses the space of slices and
// tensor records only then; it overwrites the oldest step records in any case. Not thread-safe.
class SegmentReader {
 public:
  // Opens `<directory>/<name>.seg` and its .ctl. Returns null and sets *why to one sentence on failure.
  static std::unique_ptr<SegmentReader> open(const std::string& directory, const std::string& name,
                                             std::string* why);
  // Does the same with files that are already open, the control file for reading and writing. Takes ownership
  // of both descriptors. A negative descriptor means that the file could not be opened.
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
  // Returns the names of StepRecord::scalars known so far, in their order.
  std::vector<std::string> scalar_names() const;
  std::vector<UnseenName> unseen_names() const;
  Coverage coverage() const;
  Totals totals() const;

  // Returns the step records that are not consumed yet; `now_ns` is CLOCK_REALTIME. Stops before the first
  // pending record, some numbers of which have not arrived from a device. But a pending record is returned if
  // more than kMostPendingSteps records follow it, or after kMostPendingSteps times the duration of its step
  // (at least 1 s). Also stops before a record whose checksum does not fit, for a second: it may just be
  // written.
  std::vector<StepRecord> unread_steps() { return unread_steps(now_ns()); }
  std::vector<StepRecord> unread_steps(uint64_t now_ns);
  // Consumes the result of the last unread_steps(). Records overwritten unread, and damaged ones, count as
  // steps_lost().
  void consume_steps();
  // Calls unread_steps(), then consume_steps().
  std::vector<StepRecord> new_steps() { return new_steps(now_ns()); }
  std::vector<StepRecord> new_steps(uint64_t now_ns);
  // Makes unread_steps() return pending records at once. Must be called only after the trainer has ended.
  void wait_no_more() { waits_for_pending_ = false; }
  uint64_t steps_lost() const { return control_.steps_lost; }
  // Of these, the damaged ones that this agent has met: another process has written into the file.
  uint64_t steps_damaged() const { return steps_damaged_; }
  // Returns how many step records this agent and the agents before it (one may be restarted) have consumed.
  uint64_t steps_consumed() const { return control_.step_cursor - control_.steps_lost; }
  // Returns the last consumed record. Its `sequence` is 0 if there was none or the record was overwritten.
  StepRecord last_step() const;

  // A slice that is not consumed yet: a complete one from next_ready(), or an incomplete one from torn().
  struct Ready {
    uint32_t slot = 0;    // the slot of its first part
    uint32_t parts = 1;   // number of slots
    uint64_t ticket = 0;  // ticket of its first part; tickets number all parts that the trainer has written
    const char* why = nullptr;      // the reason if the slice is invalid; then it must be consumed as lost
    Lost lost_as = Lost::kRefused;  // with `why`: kDamaged if a checksum does not fit
    SlotView view;                  // its payloads are valid until the next call of next_ready()
  };
  // Finds the next complete slice; false: no slice is complete. Until the trainer publishes another slice,
  // further calls then cost only one read: that of the counters of published slices.
  bool next_ready(Ready* ready);

  // Makes the next call of next_ready() read every slot even if the counters of published slices are
  // unchanged. Needed if the trainer may have died between publishing a slot and counting it.
  void read_all_slots_next() { reads_all_slots_next_ = true; }

  // Returns slices that the trainer left incomplete. Must be called only after the trainer has ended.
  std::vector<Ready> torn();

  // Counts slices of a trainer that has ended as lost: they were counted as sampled and have not come.
  void count_lost(uint32_t pass, Lost reason, uint64_t slices);

  // Consumes a slice and counts it as judged or lost. A slice of key positions (Slot::columns is 1) is not
  // counted, because its call has a slice of rows too, which is counted.
  void consume_judged(const Ready& ready);
  void consume_lost(const Ready& ready, Lost reason);

  // Number of slices that this agent and the agents before it have counted as judged or lost.
  uint64_t judged(uint32_t pass) const;
  uint64_t lost(uint32_t pass, Lost reason) const;

  struct ReadyTensor {          // a tensor record that is not consumed yet
    const char* why = nullptr;  // the reason if the record is invalid
    TensorView view;            // its payloads are valid until the next call of next_tensor()
  };
  // Finds the next tensor record; false: none was written. If the record is invalid and its length is
  // unknown, consume_tensor() skips all tensor records written so far.
  bool next_tensor(ReadyTensor* ready);
  void consume_tensor();           // consumes the record that next_tensor() found last
  TensorRing tensor_ring() const;  // all zero if the segment has no ring of tensor records

  // Whether the file has the size and the header that it was created with. If not, another process has
  // truncated it or written into it, and what was in it may be lost or wrong.
  bool is_intact() const;

  // Whether the trainer still holds its lock on the .seg file, which it does until its process ends.
  bool is_locked() const;

  bool switched_on() const;  // whether sampling is on. The agent and `foreshock pause` can switch it off.
  // From `from_step` on, the trainer samples one step in `interval`.
  void set_interval(uint64_t interval, int64_t from_step);
  // In the steps [from_step, until_step), the trainer samples one step in `interval`, if this is more often.
  void set_burst(uint64_t interval, int64_t from_step, int64_t until_step);
  // Publishes the agent's CPU time for this rank, for which the trainer's budget pays.
  void set_agent_cost(const AgentCost& cost);
  // Publishes `advice`; its `sequence` is ignored and set here.
  void set_advice(Advice advice);
  void set_agent_pid(uint64_t pid);

 private:
  SegmentReader() = default;
  static uint64_t now_ns();
  static bool is_counted(const Ready& ready);
  bool is_waited_for(const StepRecord& record, uint64_t newest, uint64_t now_ns) const;
  bool may_pass_gap(uint64_t now_ns);
  bool read_region(RegionId id, std::vector<std::byte>* into) const;
  template <class T>
  std::vector<T> ready_records(RegionId id) const;
  // Reads at most 16 step records from number `next` on. Returns whether these include all new ones.
  bool read_few_steps(uint64_t next) const;
  uint64_t slot_offset(uint32_t slot) const;
  uint64_t sequence_of(uint32_t slot) const;
  uint32_t slots() const { return static_cast<uint32_t>(header_.regions[kSlots].count); }
  Slot header_of(uint32_t slot) const;
  bool is_unread(uint32_t slot, uint64_t sequence);
  bool read_slot(uint32_t slot, uint64_t sequence, SlotView* view, Ready* ready);
  bool read_slice(uint32_t slot, uint64_t sequence, Ready* ready);
  bool read_parts(Ready* ready);
  // `tail`: the header of a slot with a later part of a slice, i.e. not with part 0.
  bool is_orphan(const Slot& tail) const;
  bool is_later_part(uint64_t ticket) const;
  uint32_t parts_of(const Slot& header, uint64_t ticket) const;
  void consume(const Ready& ready);
  void store_consumption(uint32_t slot);
  void move_tensor_cursor(uint64_t cursor);

  std::string name_;
  int segment_file_ = -1;  // descriptors of the .seg and the .ctl file
  int control_file_ = -1;
  Header header_ = {};
  Control control_ = {};
  Consumption consumption_[kMaxSlots] = {};
  struct {
    uint64_t newest = 0, count = 0;  // number of the newest record, and how many there are
    uint64_t damaged = 0;            // records between them that are damaged
  } unread_;                         // the records that unread_steps() returned last
  uint64_t steps_damaged_ = 0;
  bool has_strange_slot_ = false;  // see is_intact()
  uint64_t gap_since_ns_ = 0;    // when unread_steps() first met the gap that it waits for; 0: it meets none
  uint64_t last_search_ns_ = 0;  // when unread_steps() last read the whole ring although it found nothing new
  uint32_t next_slot_ = 0;       // the slot that next_ready() looks at first
  Progress progress_ = {};       // counters of published slices when next_ready() last found no slice
  bool reads_all_slots_next_ = true;  // next_ready() reads every slot even if progress_ is unchanged
  bool waits_for_pending_ = true;     // unread_steps() waits for pending records
  mutable std::vector<std::byte> region_buffer_;  // the region that was read last
  std::vector<std::byte> slot_buffer_;            // the slot that was read last
  JoinedSlice joined_;
  std::vector<std::byte> tensor_buffer_;  // the tensor record that was read last
  uint64_t next_tensor_ = 0;              // position in the ring after the record in tensor_buffer_
};

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_READER_H_
