// Reads a segment, the shared memory of one trainer process, with pread, and writes the agent's progress and
// commands into its control file. A segment consists of regions (arrays of records). A slot holds a slice
// (the copied part of an attention call) or a part of one. The trainer numbers its uses of slots (tickets)
// and its step records from 1 on. Number t goes to place t % count, which begins with a sequence: 2t once
// number t is complete, 2t - 1 during its write.
#include "segment/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "segment/checksum.h"
#include "segment/layout.h"

namespace foreshock::segment {
namespace {

// Reads all `bytes` at `offset`. Returns false on failure.
bool read_exactly(int fd, void* destination, size_t bytes, uint64_t offset) {
  char* next = static_cast<char*>(destination);
  while (bytes > 0) {
    const ssize_t got = pread(fd, next, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

// A failed write is ignored: the field in the file keeps its value.
template <class T>
void write_field(int fd, const T& value, uint64_t offset) {
  while (pwrite(fd, &value, sizeof value, static_cast<off_t>(offset)) < 0 && errno == EINTR) {
  }
}

}  // namespace

std::unique_ptr<SegmentReader> SegmentReader::open(const std::string& directory, const std::string& name,
                                                   std::string* why) {
  constexpr int kOpenFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;  // O_NONBLOCK: does not wait for a FIFO
  const std::string path = directory + "/" + name;
  return adopt(name, ::open((path + ".seg").c_str(), O_RDONLY | kOpenFlags),
               ::open((path + ".ctl").c_str(), O_RDWR | kOpenFlags), why);
}

std::unique_ptr<SegmentReader> SegmentReader::adopt(const std::string& name, int segment_file,
                                                    int control_file, std::string* why) {
  std::unique_ptr<SegmentReader> reader(new SegmentReader);
  reader->name_ = name;
  reader->segment_file_ = segment_file;
  reader->control_file_ = control_file;
  const auto refuse = [&](const char* reason) {
    *why = reason;
    return nullptr;
  };
  if (segment_file < 0) return refuse("cannot be opened");
  if (control_file < 0) return refuse("its control file cannot be opened");
  struct stat status = {};
  if (fstat(segment_file, &status) != 0 || !S_ISREG(status.st_mode)) return refuse("not a regular file");
  // A trainer reserves its whole file (512 bytes a block). A sparse file could make the agent read terabytes.
  if (static_cast<uint64_t>(status.st_blocks) * 512 < static_cast<uint64_t>(status.st_size))
    return refuse("a sparse file, which no trainer makes");

  std::byte page[4096];
  const size_t page_bytes = std::min<size_t>(sizeof page, static_cast<size_t>(status.st_size));
  if (!read_exactly(segment_file, page, page_bytes, 0)) return refuse("cannot be read");
  if (const char* reason =
          parse_header({page, page_bytes}, static_cast<uint64_t>(status.st_size), &reader->header_))
    return refuse(reason);

  struct stat control_status = {};
  if (fstat(control_file, &control_status) != 0 || control_status.st_size != kControlBytes ||
      !read_exactly(control_file, &reader->control_, sizeof(Control), 0) ||
      !read_exactly(control_file, reader->consumption_, sizeof reader->consumption_, kConsumptionOffset))
    return refuse("its control file cannot be read");
  const Control& control = reader->control_;
  if (std::memcmp(control.magic, kControlMagic, sizeof kControlMagic) != 0 ||
      control.layout_version != reader->header_.layout_version || control.nonce != reader->header_.nonce)
    return refuse("its control file belongs to another segment");
  return reader;
}

SegmentReader::~SegmentReader() {
  if (segment_file_ >= 0) close(segment_file_);
  if (control_file_ >= 0) close(control_file_);
}

bool SegmentReader::read_region(RegionId id, std::vector<std::byte>* into) const {
  const Region& region = header_.regions[id];
  into->resize(region.record_size * region.count);
  return read_exactly(segment_file_, into->data(), into->size(), region.offset);
}

Identity SegmentReader::identity() const {
  if (!read_region(kIdentity, &region_buffer_)) return {};
  return record_at<Identity>(region_buffer_, 0);
}

std::optional<int> SegmentReader::exit_status() const {
  const Identity now = identity();
  return now.has_exited == 1 ? std::optional<int>(now.exit_status) : std::nullopt;
}

// Returns the records of a region up to the first one that is not ready.
template <class T>
std::vector<T> SegmentReader::ready_records(RegionId id) const {
  std::vector<T> records;
  if (!read_region(id, &region_buffer_)) return records;
  for (uint64_t n = 0; n < header_.regions[id].count; ++n) {
    const auto record = record_at<T>(region_buffer_, n);
    if (record.ready != 1) break;
    records.push_back(record);
  }
  return records;
}

// Ends before the first operation with an invalid pass: without it, the later ones would get wrong indices.
std::vector<Op> SegmentReader::ops() const {
  std::vector<Op> ops = ready_records<Op>(kOps);
  ops.erase(std::find_if(ops.begin(), ops.end(), [](const Op& op) { return op.pass >= kPasses; }), ops.end());
  return ops;
}

std::vector<Layer> SegmentReader::layers() const { return ready_records<Layer>(kLayers); }

std::vector<std::string> SegmentReader::scalar_names() const {
  std::vector<std::string> names;
  for (const ScalarName& scalar : ready_records<ScalarName>(kScalarNames))
    names.push_back(text_of(scalar.name));
  return names;
}

std::vector<UnseenName> SegmentReader::unseen_names() const {
  return ready_records<UnseenName>(kUnseenNames);
}

Coverage SegmentReader::coverage() const {
  const Region& region = header_.regions[kCoverage];
  if (region.count == 0 || !read_region(kCoverage, &region_buffer_)) return {};
  return record_at<Coverage>(region_buffer_, 0);
}

Totals SegmentReader::totals() const {
  if (!read_region(kThreads, &region_buffer_)) return {};
  return parse_threads(region_buffer_);
}

uint64_t SegmentReader::now_ns() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// Whether unread_steps() still waits for numbers of `record` that have not arrived from a device. The wait
// ends when more than kMostPendingSteps records follow (`newest` is the number of the last one) or, since a
// hanging trainer adds no records, after kMostPendingSteps durations of the recorded step, at least 1 s.
// waits_for_pending_ is false once the trainer has ended.
bool SegmentReader::is_waited_for(const StepRecord& record, uint64_t newest, uint64_t now_ns) const {
  constexpr uint64_t kLeastWaitNs = 1'000'000'000;
  if (!waits_for_pending_ || !is_pending(record) || newest - record.sequence / 2 > kMostPendingSteps)
    return false;
  const uint64_t age = now_ns > record.time_ns ? now_ns - record.time_ns : 0;
  return age < kLeastWaitNs || age / kMostPendingSteps < record.duration_ns;
}

// Whether unread_steps() may go past step records that are missing before a whole one. They may be being
// written, so it first waits for a second. If they do not come, they are damaged.
bool SegmentReader::may_pass_gap(uint64_t now_ns) {
  constexpr uint64_t kWaitNs = 1'000'000'000;
  if (gap_since_ns_ == 0) gap_since_ns_ = now_ns;
  return !waits_for_pending_ || now_ns - std::min(gap_since_ns_, now_ns) >= kWaitNs;
}

// Reads 16 step records, from the place of number `next` on, into region_buffer_; fewer if the region ends
// before. Returns whether they include every new record. They do if the last place read still holds an older
// record, since the trainer then has not got that far.
bool SegmentReader::read_few_steps(uint64_t next) const {
  constexpr uint64_t kFew = 16;
  const Region& steps = header_.regions[kSteps];
  const uint64_t first = next % steps.count, count = std::min(kFew, steps.count - first);
  region_buffer_.resize(sizeof(StepRecord) * count);
  const uint64_t offset = steps.offset + sizeof(StepRecord) * first;
  if (!read_exactly(segment_file_, region_buffer_.data(), region_buffer_.size(), offset)) return false;
  const auto last = record_at<StepRecord>(region_buffer_, count - 1);
  return last.sequence < 2 * (next + count - 1);
}

std::vector<StepRecord> SegmentReader::unread_steps(uint64_t now_ns) {
  constexpr uint64_t kSearchNs = 1'000'000'000;
  const Region& region = header_.regions[kSteps];
  std::vector<StepRecord> records;
  // Most calls find nothing new, so first only the sequence of the next record is read. It is less than
  // 2 * next until the record is written, and greater if a later record has overwritten it. If it is damaged,
  // it may have any value, so once a second the whole ring is read.
  const uint64_t next = control_.step_cursor + 1;  // step_cursor: number of the last consumed record
  uint64_t sequence = 0;
  if (!read_exactly(segment_file_, &sequence, sizeof sequence,
                    region.offset + region.record_size * (next % region.count)))
    return records;
  const bool is_search = sequence < 2 * next;
  if (is_search && waits_for_pending_ && now_ns - std::min(last_search_ns_, now_ns) < kSearchNs)
    return records;
  if (is_search) last_search_ns_ = now_ns;
  const bool few_suffice = sequence == 2 * next && read_few_steps(next);
  if (!few_suffice && !read_region(kSteps, &region_buffer_)) return records;
  uint64_t unused_lost = 0;  // consume_steps() counts the lost records
  const std::vector<StepRecord> candidates = parse_steps(region_buffer_, control_.step_cursor, &unused_lost);
  uint64_t damaged = 0;
  bool has_gap = false;
  for (const StepRecord& record : candidates) {
    const uint64_t number = record.sequence / 2, newest = candidates.back().sequence / 2;
    const uint64_t previous = records.empty() ? control_.step_cursor : records.back().sequence / 2;
    // Missing records between `previous` and this one were overwritten, which is possible only before the
    // first record returned, or they were written while the region was read and the next call returns them,
    // or they are damaged. The record that is being written has already destroyed the oldest one, so there is
    // one place less.
    const bool may_be_overwritten = records.empty() && newest - previous > region.count - 1;
    const bool is_after_gap = number != previous + 1 && !may_be_overwritten;
    has_gap = has_gap || is_after_gap;
    if (is_waited_for(record, newest, now_ns) || (is_after_gap && !may_pass_gap(now_ns))) break;
    if (is_after_gap) damaged += number - previous - 1;
    records.push_back(record);
  }
  if (!has_gap) gap_since_ns_ = 0;
  if (records.empty()) return records;
  unread_.newest = records.back().sequence / 2;
  unread_.count = records.size();
  unread_.damaged = damaged;
  return records;
}

void SegmentReader::consume_steps() {
  if (unread_.count == 0) return;
  const uint64_t passed = unread_.newest - control_.step_cursor;
  control_.steps_lost += passed - std::min(unread_.count, passed);
  steps_damaged_ += unread_.damaged;
  control_.step_cursor = unread_.newest;
  unread_ = {};
  // step_cursor and steps_lost are stored by one write, so that a killed agent cannot leave a new cursor with
  // an old count. agent_pid is between the two fields, so it is written too.
  struct {
    uint64_t cursor, pid, lost;
  } const stored = {control_.step_cursor, control_.agent_pid, control_.steps_lost};
  static_assert(offsetof(Control, agent_pid) == offsetof(Control, step_cursor) + 8 &&
                offsetof(Control, steps_lost) == offsetof(Control, step_cursor) + 16);
  write_field(control_file_, stored, offsetof(Control, step_cursor));
}

std::vector<StepRecord> SegmentReader::new_steps(uint64_t now_ns) {
  std::vector<StepRecord> records = unread_steps(now_ns);
  consume_steps();
  return records;
}

StepRecord SegmentReader::last_step() const {
  const Region& region = header_.regions[kSteps];
  StepRecord record = {};
  const uint64_t offset = region.offset + region.record_size * (control_.step_cursor % region.count);
  if (control_.step_cursor == 0 || !read_exactly(segment_file_, &record, sizeof record, offset)) return {};
  const bool is_whole = record.sequence == 2 * control_.step_cursor && record.checksum == checksum_of(record);
  return is_whole ? record : StepRecord{};
}

uint64_t SegmentReader::judged(uint32_t pass) const {
  uint64_t sum = 0;
  for (const Consumption& record : consumption_) sum += record.judged[pass];
  return sum;
}

uint64_t SegmentReader::lost(uint32_t pass, Lost reason) const {
  uint64_t sum = 0;
  for (const Consumption& record : consumption_) sum += record.lost[pass][static_cast<uint32_t>(reason)];
  return sum;
}

bool SegmentReader::is_intact() const {
  Header now = {};
  struct stat status = {};
  return !has_strange_slot_ && fstat(segment_file_, &status) == 0 &&
         static_cast<uint64_t>(status.st_size) == header_.file_size &&
         read_exactly(segment_file_, &now, sizeof now, 0) && std::memcmp(&now, &header_, sizeof now) == 0;
}

// The trainer holds a write lock. F_GETLK reports the lock that would prevent a read lock, or F_UNLCK.
bool SegmentReader::is_locked() const {
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(segment_file_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool SegmentReader::switched_on() const {
  Control now = {};
  return read_exactly(control_file_, &now, sizeof now, 0) && now.agent_switch == 1 && now.command_switch == 1;
}

void SegmentReader::set_interval(uint64_t interval, int64_t from_step) {
  // from_step is stored first, so that a trainer that reads the new interval also reads the new from_step.
  control_.interval_from_step = from_step;
  control_.interval = interval;
  write_field(control_file_, control_.interval_from_step, offsetof(Control, interval_from_step));
  write_field(control_file_, control_.interval, offsetof(Control, interval));
}

void SegmentReader::set_agent_cost(const AgentCost& cost) {
  if (control_.agent == cost) return;
  control_.agent = cost;
  write_field(control_file_, cost, offsetof(Control, agent));
}

void SegmentReader::set_burst(uint64_t interval, int64_t from_step, int64_t until_step) {
  // Interval 0 means no burst. It is stored first, so that a trainer never reads a mixture of two bursts.
  write_field(control_file_, uint64_t{0}, offsetof(Control, burst_interval));
  write_field(control_file_, from_step, offsetof(Control, burst_from_step));
  write_field(control_file_, until_step, offsetof(Control, burst_until_step));
  write_field(control_file_, interval, offsetof(Control, burst_interval));
}

void SegmentReader::set_advice(Advice advice) {
  // The sequence is odd during a write. `whole` is the next even one, also if a killed agent left an odd one.
  const uint64_t whole = (control_.advice.sequence / 2 + 1) * 2;
  write_field(control_file_, whole - 1, offsetof(Control, advice));
  advice.sequence = whole - 1;
  write_field(control_file_, advice, offsetof(Control, advice));
  write_field(control_file_, whole, offsetof(Control, advice));
  control_.advice = advice;
  control_.advice.sequence = whole;
}

void SegmentReader::set_agent_pid(uint64_t pid) {
  control_.agent_pid = pid;
  write_field(control_file_, pid, offsetof(Control, agent_pid));
}

// -- slices, which may be stored in several slots --

namespace {

// kMostSliceBytes limits the payloads of a slot that grow with the sequence: keys, values and mask of a slice
// of rows. This is the limit of the others: the header, and at most 16 rows of 4096 elements of 8 bytes (512
// KiB) for each of queries, output and gradients. In a slice of columns, both groups change places.
constexpr uint64_t kMostBytesBesideKeys = uint64_t{4} << 20;
// A buffer larger than this is freed when next_ready() finds no slice.
constexpr size_t kMostKeptBytes = size_t{16} << 20;

}  // namespace

uint64_t SegmentReader::slot_offset(uint32_t slot) const {
  return header_.regions[kSlots].offset + header_.regions[kSlots].record_size * slot;
}

uint64_t SegmentReader::sequence_of(uint32_t slot) const {
  uint64_t sequence = 0;
  read_exactly(segment_file_, &sequence, sizeof sequence, slot_offset(slot));
  return sequence;
}

Slot SegmentReader::header_of(uint32_t slot) const {
  Slot header = {};
  read_exactly(segment_file_, &header, sizeof header, slot_offset(slot));
  return header;
}

// Reads a slot, up to the end of its last payload but never beyond the slot, and parses it. Sets ready->why
// to the reason if it is invalid. Returns false if the slot's sequence is not, or no longer, `sequence`. A
// device that has stored a slice has stored its times too, and has computed no checksum.
bool SegmentReader::read_slot(uint32_t slot, uint64_t sequence, SlotView* view, Ready* ready) {
  const Slot header = header_of(slot);
  const uint64_t end = end_of_payloads(header, header_.regions[kSlots].record_size);
  if (end > kMostSliceBytes + kMostBytesBesideKeys) {
    view->header = header;
    ready->why = "a slot larger than a slice may be";
    return sequence_of(slot) == sequence;
  }
  slot_buffer_.resize(end);
  if (!read_exactly(segment_file_, slot_buffer_.data(), end, slot_offset(slot))) return false;
  if (sequence_of(slot) != sequence) return false;
  ready->why = parse_slot({slot_buffer_.data(), end}, view);
  if (ready->why == nullptr && view->header.ticket != sequence / 2) ready->why = "ticket differs";
  const bool is_of_device = view->header.checksum == 0 && view->header.device_end_ns != 0;
  const auto* bytes = reinterpret_cast<const char*>(slot_buffer_.data());
  if (!is_of_device && view->header.checksum != checksum_of(view->header, bytes, end)) {
    ready->why = "its checksum does not fit";
    ready->lost_as = Lost::kDamaged;
  }
  return true;
}

// Reads the later parts of the slice whose first part is in ready->view, and joins them. The first part was
// published last, so a slice that lacks a part is invalid. Returns false if a slot changed during the reads.
bool SegmentReader::read_parts(Ready* ready) {
  const uint64_t most_bytes = header_.regions[kSlots].record_size * slots();
  const uint32_t parts = ready->view.header.parts;
  ready->why = parts > slots() ? "more parts than slots" : joined_.begin(ready->view, most_bytes);
  for (uint32_t part = 1; part < parts && ready->why == nullptr; ++part) {
    const uint32_t slot = (ready->slot + part) % slots();
    const uint64_t sequence = sequence_of(slot);
    SlotView view;
    if (sequence != 2 * (ready->ticket + part))
      ready->why = "a part is missing";
    else if (!read_slot(slot, sequence, &view, ready))
      return false;
    if (ready->why == nullptr) ready->why = joined_.add(view);
  }
  if (ready->why == nullptr) ready->view = joined_.take();
  return sequence_of(ready->slot) == 2 * ready->ticket;
}

// Returns the number of slots of the slice whose first slot has this header; 1 if the header is not that of a
// first part with this ticket. `parts` 0 means one slot.
uint32_t SegmentReader::parts_of(const Slot& header, uint64_t ticket) const {
  return header.ticket == ticket && header.part == 0 ? std::clamp(header.parts, 1u, slots()) : 1;
}

// Reads the slice whose first part is in `slot`. Returns false if a slot changed during the reads. A slice of
// a packed batch (concatenated sequences) is cut to the real length of its sequence.
bool SegmentReader::read_slice(uint32_t slot, uint64_t sequence, Ready* ready) {
  *ready = {};
  ready->slot = slot;
  ready->ticket = sequence / 2;
  if (!read_slot(slot, sequence, &ready->view, ready)) return false;
  ready->parts = parts_of(ready->view.header, ready->ticket);
  if (ready->why == nullptr && ready->view.header.parts > 1 && !read_parts(ready)) return false;
  if (ready->why == nullptr) ready->why = settle_packed(&ready->view);
  return true;
}

// Whether `tail`, the header of a later part of a slice, has lost the first part of its slice, because an
// agent consumed the first part and was then killed. The slot of the first part may already be in use again.
bool SegmentReader::is_orphan(const Slot& tail) const {
  const uint32_t first = static_cast<uint32_t>(tail.first_ticket % slots());
  // Rounded up to an even number, because a first part that is still being written has an odd sequence.
  const uint64_t sequence = (sequence_of(first) + 1) / 2 * 2;
  return sequence != 2 * tail.first_ticket || consumption_[first].consumed == tail.first_ticket;
}

// Whether the slot holds a complete slice, or part of one, that is not consumed. A sequence that the slot
// cannot have is that of nothing that the trainer has written. It must not be consumed: the trainer would
// then never use the slot again. (A smaller ticket may come after a larger one: two threads may claim a slot
// in either order.)
bool SegmentReader::is_unread(uint32_t slot, uint64_t sequence) {
  const uint64_t ticket = sequence / 2;
  if (sequence % 2 != 0 || ticket == consumption_[slot].consumed) return false;
  const bool is_possible = ticket > 0 && ticket % slots() == slot;
  has_strange_slot_ = has_strange_slot_ || !is_possible;
  return is_possible;
}

bool SegmentReader::next_ready(Ready* ready) {
  // The counters of published slices are read first, so that a slice published meanwhile is found next time.
  // reads_all_slots_next_: the trainer may have died after it published a slot and before it counted it.
  Progress progress = {};
  read_exactly(segment_file_, &progress, sizeof progress, header_.regions[kProgress].offset);
  if (!reads_all_slots_next_ && std::memcmp(&progress, &progress_, sizeof progress) == 0) return false;
  for (uint32_t tried = 0; tried < slots(); ++tried) {
    const uint32_t slot = next_slot_;
    next_slot_ = (next_slot_ + 1) % slots();
    const uint64_t sequence = sequence_of(slot);
    if (!is_unread(slot, sequence)) continue;
    const Slot header = header_of(slot);
    if (header.part == 0) {
      if (read_slice(slot, sequence, ready)) return true;
    } else if (is_orphan(header)) {
      consumption_[slot].consumed = sequence / 2;
      store_consumption(slot);
    }
  }
  progress_ = progress;
  reads_all_slots_next_ = false;
  if (slot_buffer_.capacity() > kMostKeptBytes) slot_buffer_ = {};
  joined_.keep_at_most(kMostKeptBytes);
  return false;
}

// Whether a partly written ticket is a later part of a slice, which is counted by its first part. Searches
// all slots for that first part, since the ticket's own header may not be written yet.
bool SegmentReader::is_later_part(uint64_t ticket) const {
  for (uint32_t slot = 0; slot < slots(); ++slot) {
    const Slot header = header_of(slot);
    if (header.part == 0 && header.parts > 1 && header.parts <= slots() &&
        (header.sequence + 1) / 2 == header.ticket && ticket > header.ticket &&
        ticket - header.ticket < header.parts)
      return true;
  }
  return false;
}

std::vector<SegmentReader::Ready> SegmentReader::torn() {
  std::vector<Ready> result;
  for (uint32_t slot = 0; slot < slots(); ++slot) {
    const uint64_t sequence = sequence_of(slot);
    const uint64_t ticket = (sequence + 1) / 2;
    if (sequence % 2 == 0 || ticket == consumption_[slot].consumed || is_later_part(ticket)) continue;
    Ready ready;
    ready.slot = slot;
    ready.ticket = ticket;
    ready.why = "its writer died in the middle";
    ready.view.header = header_of(slot);
    ready.parts = parts_of(ready.view.header, ticket);
    if (ready.view.header.pass >= kPasses) ready.view.header.pass = 0;  // unwritten or hostile
    result.push_back(ready);
  }
  return result;
}

void SegmentReader::count_lost(uint32_t pass, Lost reason, uint64_t slices) {
  if (slots() == 0 || slices == 0) return;
  consumption_[0].lost[pass][static_cast<uint32_t>(reason)] += static_cast<uint32_t>(slices);
  store_consumption(0);
}

void SegmentReader::store_consumption(uint32_t slot) {
  write_field(control_file_, consumption_[slot], kConsumptionOffset + slot * sizeof(Consumption));
}

// Consumes the first part, whose Consumption has the counts, before the later parts. If the agent is killed
// in between, the next agent finds the later parts as orphans (is_orphan()). If the slice lacks a part, the
// slot of that part has another ticket and is left out.
void SegmentReader::consume(const Ready& ready) {
  consumption_[ready.slot].consumed = ready.ticket;
  store_consumption(ready.slot);
  for (uint32_t part = 1; part < ready.parts; ++part) {
    const uint32_t slot = (ready.slot + part) % slots();
    if ((sequence_of(slot) + 1) / 2 != ready.ticket + part) continue;
    consumption_[slot].consumed = ready.ticket + part;
    store_consumption(slot);
  }
}

// A call is counted by its slice of query rows, not again by its slice of key positions (`columns` is 1).
bool SegmentReader::is_counted(const Ready& ready) { return ready.view.header.columns != 1; }

void SegmentReader::consume_judged(const Ready& ready) {
  // An invalid slice may have a pass out of range, hence % kPasses.
  if (is_counted(ready)) ++consumption_[ready.slot].judged[ready.view.header.pass % kPasses];
  consume(ready);
}

void SegmentReader::consume_lost(const Ready& ready, Lost reason) {
  if (is_counted(ready))
    ++consumption_[ready.slot].lost[ready.view.header.pass % kPasses][static_cast<uint32_t>(reason)];
  consume(ready);
}

// -- records of tensors --

TensorRing SegmentReader::tensor_ring() const {
  const Region& region = header_.regions[kTensors];
  TensorRing ring = {};
  if (region.count == 0 || !read_exactly(segment_file_, &ring, sizeof ring, region.offset)) return {};
  ring.interval = std::min(ring.interval, kMostTensorInterval);
  return ring;
}

void SegmentReader::move_tensor_cursor(uint64_t cursor) {
  control_.tensor_cursor = cursor;
  write_field(control_file_, cursor, offsetof(Control, tensor_cursor));
}

bool SegmentReader::next_tensor(ReadyTensor* ready) {
  const Region& region = header_.regions[kTensors];
  uint64_t written = 0;
  if (region.count == 0 || !read_exactly(segment_file_, &written, sizeof written, region.offset))
    return false;
  // Cursors count all bytes ever written; the place in the ring is the cursor modulo `ring_bytes`.
  const uint64_t ring_bytes = (region.record_size - sizeof(TensorRing)) / kTensorAlign * kTensorAlign;
  const uint64_t ring_offset = region.offset + sizeof(TensorRing);
  *ready = {};
  while (control_.tensor_cursor != written) {
    const uint64_t cursor = control_.tensor_cursor, unread = written - cursor;
    const uint64_t place = cursor % ring_bytes, record_offset = ring_offset + place;
    std::byte head[16];  // TensorRecord::bytes and kind
    uint64_t length = 0;
    bool is_filler = false;  // a filler takes the space before the ring's end that is too small for a record
    if (unread > ring_bytes) {
      ready->why = "ring of tensors with more in it than fits";
    } else if (!read_exactly(segment_file_, head, sizeof head, record_offset)) {
      return false;
    } else {
      ready->why = parse_tensor_length(head, unread, ring_bytes - place, &length, &is_filler);
    }
    if (ready->why != nullptr) {  // the length is unknown, so consume_tensor() will skip all records
      next_tensor_ = written;
      return true;
    }
    next_tensor_ = cursor + length;
    if (is_filler) {
      move_tensor_cursor(next_tensor_);
      continue;
    }
    tensor_buffer_.resize(length);
    if (!read_exactly(segment_file_, tensor_buffer_.data(), length, record_offset)) return false;
    ready->why = parse_tensor(tensor_buffer_, &ready->view);
    return true;
  }
  return false;
}

void SegmentReader::consume_tensor() { move_tensor_cursor(next_tensor_); }

}  // namespace foreshock::segment
