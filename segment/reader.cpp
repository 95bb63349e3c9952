#include "segment/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "segment/names.h"
#include "segment/pread.h"

namespace foreshock::segment {
std::unique_ptr<SegmentReader> SegmentReader::open(const std::string& directory, const std::string& name,
                                                   std::string* why) {
  constexpr int kCareful = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const std::string path = directory + "/" + name;
  return adopt(name, ::open((path + ".seg").c_str(), O_RDONLY | kCareful),
               ::open((path + ".ctl").c_str(), O_RDWR | kCareful), why);
}

std::unique_ptr<SegmentReader> SegmentReader::adopt(const std::string& name, int segment_file,
                                                    int control_file, std::string* why) {
  std::unique_ptr<SegmentReader> reader(new SegmentReader);
  reader->name_ = name;
  // The trainer's lock belongs to its process, so closing this descriptor frees nothing.
  reader->segment_ = segment_file;
  reader->control_file_ = control_file;
  const auto refuse = [&](const char* reason) {
    *why = reason;
    return nullptr;
  };
  if (segment_file < 0) return refuse("cannot be opened");
  if (control_file < 0) return refuse("its control file cannot be opened");
  struct stat status = {};
  if (fstat(reader->segment_, &status) != 0 || !S_ISREG(status.st_mode)) return refuse("not a regular file");
  // A trainer reserves its file whole. Where it has not, somebody wants us to read terabytes of nothing.
  if (static_cast<uint64_t>(status.st_blocks) * 512 < static_cast<uint64_t>(status.st_size))
    return refuse("a sparse file, which no trainer makes");
  reader->device_ = status.st_dev;
  reader->inode_ = status.st_ino;

  std::byte page[4096];
  const size_t head = std::min<size_t>(sizeof page, static_cast<size_t>(status.st_size));
  if (!read_exactly(reader->segment_, page, head, 0)) return refuse("cannot be read");
  if (const char* reason =
          parse_header({page, head}, static_cast<uint64_t>(status.st_size), &reader->header_))
    return refuse(reason);

  struct stat control_status = {};
  if (fstat(reader->control_file_, &control_status) != 0 || control_status.st_size != kControlBytes ||
      !read_exactly(reader->control_file_, &reader->control_, sizeof(Control), 0) ||
      !read_exactly(reader->control_file_, reader->consumption_, sizeof reader->consumption_,
                    kConsumptionOffset))
    return refuse("its control file cannot be read");
  const Control& control = reader->control_;
  if (std::memcmp(control.magic, kControlMagic, sizeof kControlMagic) != 0 ||
      control.layout_version != reader->header_.layout_version || control.nonce != reader->header_.nonce)
    return refuse("its control file belongs to another segment");
  return reader;
}

SegmentReader::~SegmentReader() {
  if (segment_ >= 0) close(segment_);
  if (control_file_ >= 0) close(control_file_);
}

bool SegmentReader::read_region(RegionId id, std::vector<std::byte>* into) const {
  const Region& region = header_.regions[id];
  into->resize(region.record_size * region.count);
  return read_exactly(segment_, into->data(), into->size(), region.offset);
}

// One record, as far as its writer knew it; the rest stays zero.
template <class T>
bool SegmentReader::read_record(uint64_t record_size, uint64_t offset, T* into) const {
  *into = {};
  return read_exactly(segment_, into, std::min<size_t>(record_size, sizeof(T)), offset);
}

Identity SegmentReader::identity() const {
  if (!read_region(kIdentity, &region_)) return {};
  return record_at<Identity>(region_, header_.regions[kIdentity].record_size, 0);
}

std::optional<int> SegmentReader::exit_status() const {
  const Identity now = identity();
  return now.has_exited == 1 ? std::optional<int>(now.exit_status) : std::nullopt;
}

std::vector<Op> SegmentReader::ops() const {
  std::vector<Op> ops;
  if (!read_region(kOps, &region_)) return ops;
  const Region& region = header_.regions[kOps];
  for (uint64_t n = 0; n < region.count; ++n) {
    const auto op = record_at<Op>(region_, region.record_size, n);
    if (op.ready != 1 || op.pass >= kPasses) break;
    ops.push_back(op);
  }
  return ops;
}

std::vector<Layer> SegmentReader::layers() const {
  std::vector<Layer> layers;
  if (!read_region(kLayers, &region_)) return layers;
  const Region& region = header_.regions[kLayers];
  for (uint64_t n = 0; n < region.count; ++n) {
    const auto layer = record_at<Layer>(region_, region.record_size, n);
    if (layer.ready != 1) break;
    layers.push_back(layer);
  }
  return layers;
}

Layer SegmentReader::layer(uint32_t index) const {
  const Region& region = header_.regions[kLayers];
  Layer layer = {};
  if (index < region.count)
    read_record(region.record_size, region.offset + region.record_size * index, &layer);
  return layer;
}

std::vector<std::string> SegmentReader::scalar_names() const {
  std::vector<std::string> names;
  const Region& region = header_.regions[kScalarNames];
  if (region.count == 0 || !read_region(kScalarNames, &region_)) return names;
  for (uint64_t n = 0; n < region.count; ++n) {
    const auto scalar = record_at<ScalarName>(region_, region.record_size, n);
    if (scalar.ready != 1) break;
    names.push_back(text_of(scalar.name));
  }
  return names;
}

std::vector<UnseenName> SegmentReader::unseen_names() const {
  std::vector<UnseenName> names;
  const Region& region = header_.regions[kUnseenNames];
  if (region.count == 0 || !read_region(kUnseenNames, &region_)) return names;
  for (uint64_t n = 0; n < region.count; ++n) {
    const auto unseen = record_at<UnseenName>(region_, region.record_size, n);
    if (unseen.ready != 1) break;
    names.push_back(unseen);
  }
  return names;
}

Coverage SegmentReader::coverage() const {
  const Region& region = header_.regions[kCoverage];
  if (region.count == 0 || !read_region(kCoverage, &region_)) return {};
  return record_at<Coverage>(region_, region.record_size, 0);
}

Totals SegmentReader::totals() const {
  if (!read_region(kThreads, &region_)) return {};
  return parse_threads(region_, header_.regions[kThreads]);
}

uint64_t SegmentReader::now_ns() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// A trainer that hangs completes nothing more; that is to be seen as well.
bool SegmentReader::is_waited_for(const StepRecord& record, uint64_t newest, uint64_t now_ns) const {
  constexpr uint64_t kAtLeastNs = 1'000'000'000;
  if (!waits_ || !is_pending(record) || newest - record.sequence / 2 > kMostPendingSteps) return false;
  const uint64_t age = now_ns > record.time_ns ? now_ns - record.time_ns : 0;
  return age < kAtLeastNs || age / kMostPendingSteps < record.duration_ns;
}

// Header, data, header: false where it was overwritten meanwhile. Read once more, since `seen` may have been
// read while it was completed; it was complete when that was given, so now all of it is.
bool SegmentReader::read_step(const StepRecord& seen, StepRecord* whole) const {
  const Region& region = header_.regions[kSteps];
  const uint64_t at = region.offset + region.record_size * (seen.sequence / 2 % region.count);
  uint64_t again = 0;
  if (!read_record(region.record_size, at, whole) || whole->sequence != seen.sequence ||
      !read_exactly(segment_, &again, sizeof again, at) || again != seen.sequence)
    return false;
  return !is_pending(seen) || is_pending(*whole) || read_step(StepRecord(*whole), whole);
}

// The few records from `next` on, and in `shape` how many; in most trainings nothing else is new. False, and
// `shape` as it was: there are more, or they begin anew at the ring's start.
bool SegmentReader::read_few_steps(uint64_t next, Region* shape) const {
  constexpr uint64_t kFew = 16;
  const uint64_t first = next % shape->count, count = std::min(kFew, shape->count - first);
  region_.resize(shape->record_size * count);
  const uint64_t at = shape->offset + shape->record_size * first;
  if (!read_exactly(segment_, region_.data(), region_.size(), at)) return false;
  const auto last = record_at<StepRecord>(region_, shape->record_size, count - 1);
  if (last.sequence >= 2 * (next + count - 1)) return false;
  shape->count = count;
  return true;
}

std::vector<StepRecord> SegmentReader::unread_steps(uint64_t now_ns) {
  const Region& region = header_.regions[kSteps];
  std::vector<StepRecord> records;
  // Most polls find nothing new: look at the one record that would come next before reading the ring.
  const uint64_t next = control_.step_cursor + 1;
  uint64_t sequence = 0;
  if (!read_exactly(segment_, &sequence, sizeof sequence,
                    region.offset + region.record_size * (next % region.count)) ||
      sequence < 2 * next)
    return records;
  Region read = region;
  if (!(sequence == 2 * next && read_few_steps(next, &read)) && !read_region(kSteps, &region_))
    return records;
  uint64_t lost = 0;
  const std::vector<StepRecord> found = parse_steps(region_, read, control_.step_cursor, &lost);
  for (const StepRecord& record : found) {
    const uint64_t number = record.sequence / 2, newest = found.back().sequence / 2;
    // One is missing that is not overwritten: it was stored while the ring was read, and so were those behind
    // it. They, and one that was overwritten meanwhile, are left to the next call.
    const uint64_t before = records.empty() ? control_.step_cursor : records.back().sequence / 2;
    const bool is_overwritten = records.empty() && newest - before > region.count - 1;
    StepRecord whole;
    if ((number != before + 1 && !is_overwritten) || is_waited_for(record, newest, now_ns) ||
        !read_step(record, &whole))
      break;
    records.push_back(whole);
  }
  if (records.empty()) return records;
  unread_.newest = records.back().sequence / 2;
  unread_.count = records.size();
  return records;
}

void SegmentReader::consume_steps() {
  if (unread_.count == 0) return;
  const uint64_t passed = unread_.newest - control_.step_cursor;
  control_.steps_lost += passed - std::min(unread_.count, passed);
  control_.step_cursor = unread_.newest;
  unread_ = {};
  // By one write: an agent that was killed between two of them would have left steps that nobody took and
  // nobody lost. Between them lies the agent's own number.
  struct {
    uint64_t cursor, pid, lost;
  } const taken = {control_.step_cursor, control_.agent_pid, control_.steps_lost};
  static_assert(offsetof(Control, agent_pid) == offsetof(Control, step_cursor) + 8 &&
                offsetof(Control, steps_lost) == offsetof(Control, step_cursor) + 16);
  write_field(control_file_, taken, offsetof(Control, step_cursor));
}

std::vector<StepRecord> SegmentReader::new_steps(uint64_t now_ns) {
  std::vector<StepRecord> records = unread_steps(now_ns);
  consume_steps();
  return records;
}

StepRecord SegmentReader::last_step() const {
  const Region& region = header_.regions[kSteps];
  StepRecord record = {};
  const uint64_t at = region.offset + region.record_size * (control_.step_cursor % region.count);
  if (control_.step_cursor == 0 || !read_record(region.record_size, at, &record)) return {};
  return record.sequence == 2 * control_.step_cursor ? record : StepRecord{};
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

bool SegmentReader::is_locked() const {
  struct stat status = {};
  if (fstat(segment_, &status) != 0 || status.st_dev != device_ || status.st_ino != inode_) return false;
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(segment_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool SegmentReader::switched_on() const {
  Control now = {};
  return read_exactly(control_file_, &now, sizeof now, 0) && now.agent_switch == 1 && now.command_switch == 1;
}

void SegmentReader::set_interval(uint64_t interval, int64_t from_step) {
  // The step first: a trainer that reads between the two stores sees a step that is still to come.
  control_.interval_from_step = from_step;
  control_.interval = interval;
  write_field(control_file_, control_.interval_from_step, offsetof(Control, interval_from_step));
  write_field(control_file_, control_.interval, offsetof(Control, interval));
}

void SegmentReader::set_burst(uint64_t interval, int64_t from_step, int64_t until_step) {
  write_field(control_file_, uint64_t{0}, offsetof(Control, burst_interval));
  write_field(control_file_, from_step, offsetof(Control, burst_from_step));
  write_field(control_file_, until_step, offsetof(Control, burst_until_step));
  write_field(control_file_, interval, offsetof(Control, burst_interval));
}

void SegmentReader::set_advice(Advice advice) {
  // An agent that died while it wrote has left an odd number.
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

}  // namespace foreshock::segment
