#include "libmonitor/device_state.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "kernels/device_code.h"
#include "libmonitor/call.h"
#include "libmonitor/cuda_driver.h"
#include "segment/writer.h"

namespace foreshock {

void StagingRing::reset(uint64_t bytes) {
  bytes_ = bytes;
  first_ = count_ = 0;
}

void StagingRing::free_completed() {
  for (; count_ > 0; --count_, first_ = (first_ + 1) % kMostSlices) {
    // The word may already have the value of a later ticket; it never decreases.
    std::atomic_ref<uint64_t> word(*const_cast<uint64_t*>(at(0).sequence));
    if (word.load(std::memory_order_acquire) < at(0).done) return;
  }
}

bool StagingRing::find(uint64_t bytes, Place* place) {
  free_completed();
  const uint64_t need = (bytes + kAlign - 1) / kAlign * kAlign;
  if (count_ == kMostSlices || need > bytes_) return false;
  uint64_t begin = 0;
  if (count_ > 0) {
    const uint64_t oldest = at(0).begin, newest = at(count_ - 1).end;
    begin = newest;
    if (newest > oldest) {  // used range is contiguous: free after it and before it
      if (bytes_ - newest < need) {
        begin = 0;
        if (oldest < need) return false;
      }
    } else if (oldest - newest < need) {
      return false;
    }
  }
  found_ = {begin, begin + need, nullptr, 0};
  *place = {begin, (first_ + count_) % kMostSlices};
  return true;
}

void StagingRing::commit(const uint64_t* sequence, uint64_t done) {
  found_.sequence = sequence;
  found_.done = done;
  at(count_) = found_;
  ++count_;
}

void CopyTiming::expect(segment::Slot* const* slots, uint64_t ticket, uint32_t parts) {
  if (count_ + parts > segment::kMaxSlots) collect();
  for (uint32_t part = 0; part < parts && count_ < segment::kMaxSlots; ++part)
    expected_[count_++] = {slots[part], 2 * (ticket + part), part == 0};
}

void CopyTiming::collect() {
  uint32_t kept = 0;
  bool is_on_its_way = false;
  for (uint32_t n = 0; n < count_; ++n) {
    const Expected& one = expected_[n];
    const auto sequence = segment::word(one.slot->sequence);
    const uint64_t before = sequence.load(std::memory_order_acquire);
    // The first part becomes visible last.
    if (one.is_first) is_on_its_way = before < one.sequence;
    if (is_on_its_way) {
      expected_[kept++] = one;
      continue;
    }
    const uint64_t begin = segment::word(one.slot->device_begin_ns).load(std::memory_order_relaxed);
    const uint64_t end = segment::word(one.slot->device_end_ns).load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    const bool is_its = sequence.load(std::memory_order_relaxed) == one.sequence && begin <= end;
    if (is_its) last_ns_ = end - begin;
    spent_.ns += last_ns_;
    spent_.slices += one.is_first;
  }
  count_ = kept;
}

CopyTiming::Spent CopyTiming::take() {
  collect();
  return std::exchange(spent_, {});
}

namespace {

constexpr uint64_t round_up(uint64_t value) {
  return (value + StagingRing::kAlign - 1) / StagingRing::kAlign * StagingRing::kAlign;
}

// In the ring a part begins with the times of its gather. For a packed batch the sequence follows.
constexpr uint64_t kTimes = 64, kSequenceOffset = 64, kTimesAndSequence = 192;
static_assert(kSequenceOffset + sizeof(SequenceTold) <= kTimesAndSequence);
// The ring stores these in place of the slot's header, which must be at least as large.
static_assert(kTimesAndSequence <= sizeof(segment::Slot));
static_assert(sizeof(SequenceTold) == sizeof(segment::SequenceTold) &&
              offsetof(SequenceTold, position) == offsetof(segment::SequenceTold, position));

constexpr uint64_t before_payloads(const segment::Slot& slot) {
  return slot.packed == segment::kNotPacked ? kTimes : kTimesAndSequence;
}

constexpr uint64_t kClocks = round_up(StagingRing::kMostSlices * sizeof(GatherClock));

uint64_t bytes_of_part(const segment::Slot& slot) {
  const PayloadRange range = payloads_of(slot);
  return round_up(before_payloads(slot) + range.end - range.begin);
}

}  // namespace

void DeviceState::set_up(const DeviceSetting& setting, int32_t index, uint64_t context_id) {
  set_up_in(context_id, [&] {
    setting_ = setting;
    index_ = index;
    scalars_.lose();
    return try_set_up();
  });
}

cuda::Address DeviceState::progress_on_device() const {
  return progress_ + offsetof(segment::Progress, by_device) + sizeof(uint64_t) * static_cast<size_t>(index_);
}

// Both regions begin on their own page. Memory that another device has pinned is pinned for this device too.
bool DeviceState::pin_segment() {
  const DriverApi& driver = *setting_.driver;
  const auto pin = [&driver](void* begin, uint64_t bytes, cuda::Address* address) {
    const cuda::Result result =
        driver.mem_host_register(begin, bytes, cuda::kRegisterPortable | cuda::kRegisterDeviceMap);
    return (ok(result) || result == cuda::kAlreadyRegistered) &&
           ok(driver.mem_host_get_device_pointer(address, begin, 0));
  };
  return pin(setting_.writer->progress(), sizeof(segment::Progress), &progress_) &&
         pin(setting_.writer->slot_region(), setting_.writer->slot_region_bytes(), &slots_);
}

int DeviceState::try_set_up() {
  const DriverApi& driver = *setting_.driver;
  const CaptureGuard relaxed(driver);
  cuda::Device device = 0;
  int can_write = 0;
  if (!relaxed || setting_.code.empty() || !ok(driver.ctx_get_device(&device)) ||
      !ok(driver.device_get_attribute(&can_write, cuda::kCanWriteFromStream, device)) || can_write != 1)
    return FORESHOCK_SKIP_DEVICE;

  cuda::Module module = nullptr;
  if (!ok(driver.module_load_data(&module, setting_.code.data()))) return FORESHOCK_SKIP_DEVICE;
  scalars_.set_up(driver, module);

  size_t free = 0, total = 0;
  if (!ok(driver.mem_get_info(&free, &total))) return FORESHOCK_SKIP_DEVICE;
  const uint64_t wanted = setting_.writer->slots() * round_up(kTimes + setting_.writer->slot_bytes());
  const uint64_t room =
      std::min<uint64_t>(free / kShareOfFree, kMostRingBytes) / StagingRing::kAlign * StagingRing::kAlign;
  if (room < kClocks + kLeastRingBytes) return FORESHOCK_SKIP_DEVICE_MEMORY;
  const uint64_t bytes = std::min(wanted, room - kClocks);

  int least = 0, greatest = 0;
  if (!driver.find_kernel(module, name_of(DeviceKernel::kGather), &gather_) ||
      !driver.find_kernel(module, name_of(DeviceKernel::kPackedGather), &packed_gather_) ||
      !driver.find_kernel(module, name_of(DeviceKernel::kKeyGather), &key_gather_) ||
      !ok(driver.ctx_get_stream_priority_range(&least, &greatest)) ||
      !ok(driver.stream_create_with_priority(&stream_, cuda::kStreamNonBlocking, least)) ||
      !ok(driver.event_create(&event_, cuda::kEventDisableTiming)))
    return FORESHOCK_SKIP_DEVICE;
  // The memory is allocated last, so that no memory is lost if another step fails.
  if (!pin_segment() || !ok(driver.mem_alloc(&clocks_, kClocks + bytes))) return FORESHOCK_SKIP_DEVICE_MEMORY;
  memory_ = clocks_ + kClocks;
  ring_.reset(bytes);
  if (!ok(driver.memset_d8_async(clocks_, 0, kClocks, stream_)) ||
      !ok(driver.stream_write_value_64(stream_, progress_on_device(), marker(), 0)))
    return FORESHOCK_SKIP_DEVICE;
  return -1;
}

bool DeviceState::is_ready() { return has_written_marker(setting_.writer->progress()->by_device[index_]); }

uint64_t DeviceState::capacity() const {
  return std::min(setting_.writer->slot_bytes(), ring_.bytes() - StagingRing::kAlign);
}

uint32_t DeviceState::most_parts() const {
  const uint64_t parts = ring_.bytes() / (round_up(capacity()) + StagingRing::kAlign);
  return static_cast<uint32_t>(std::clamp<uint64_t>(parts, 1, setting_.writer->slots()));
}

template <class Job>
bool DeviceState::launch(cuda::Function kernel, Job* job, cuda::Stream stream) {
  const LaunchShape shape = launch_of(*job);
  void* parameters[] = {job};
  return ok(setting_.driver->launch_kernel(kernel, shape.blocks, 1, 1, shape.threads, 1, 1,
                                           shape.shared_bytes, stream, parameters, nullptr));
}

bool DeviceState::gather(const ValidatedCall& call, const Slice& slice, const ClaimedSlice& claimed,
                         cuda::Stream stream) {
  cuda::Address at = memory_ + place_.offset;
  for (uint32_t part = 0; part < claimed.parts; ++part) {
    const segment::Slot& slot = *claimed.slots[part];
    const uint64_t to = at + before_payloads(slot);
    const auto begin = [&](GatherJob* job) {
      job->times = at;
      job->clock = clocks_ + place_.number * sizeof(GatherClock);
    };
    if (slot.columns == 1) {
      KeyGatherJob job = key_gather_for_slot(call, slice, slot, to);
      begin(&job.gather);
      if (!launch(key_gather_, &job, stream)) return false;
    } else if (slot.packed == segment::kNotPacked) {
      GatherJob job = gather_for_slot(call, slice, slot, to);
      begin(&job);
      if (!launch(gather_, &job, stream)) return false;
    } else {
      PackedGatherJob job = packed_gather_for_slot(call, slice, slot, to);
      begin(&job.gather);
      job.told = at + kSequenceOffset;
      if (!launch(packed_gather_, &job, stream)) return false;
    }
    at += bytes_of_part(slot);
  }
  return ok(setting_.driver->event_record(event_, stream)) &&
         ok(setting_.driver->stream_wait_event(stream_, event_, 0));
}

bool DeviceState::copy_and_publish(const ClaimedSlice& claimed) {
  const DriverApi& driver = *setting_.driver;
  cuda::Address at = memory_ + place_.offset;
  for (uint32_t part = 0; part < claimed.parts; ++part) {
    segment::Slot* slot = claimed.slots[part];
    const PayloadRange range = payloads_of(*slot);
    if (!ok(driver.memcpy_dtoh_async(reinterpret_cast<char*>(slot) + range.begin, at + before_payloads(*slot),
                                     range.end - range.begin, stream_)) ||
        !ok(driver.memcpy_dtoh_async(&slot->device_begin_ns, at, 2 * sizeof(uint64_t), stream_)) ||
        (slot->packed != segment::kNotPacked &&
         !ok(driver.memcpy_dtoh_async(&slot->told, at + kSequenceOffset, sizeof slot->told, stream_))))
      return false;
    at += bytes_of_part(*slot);
  }
  static_assert(offsetof(segment::Slot, device_end_ns) == offsetof(segment::Slot, device_begin_ns) + 8);
  // Published in the order of SegmentWriter::publish: when a reader sees the first part, all others are
  // complete.
  for (uint32_t part = claimed.parts; part-- > 0;) {
    const auto offset = reinterpret_cast<char*>(claimed.slots[part]) - setting_.writer->slot_region();
    if (!ok(driver.stream_write_value_64(stream_, slots_ + static_cast<uint64_t>(offset),
                                         2 * (claimed.ticket + part), 0)))
      return false;
  }
  return ok(driver.stream_write_value_64(stream_, progress_on_device(), claimed.ticket, 0));
}

int DeviceState::send(const ValidatedCall& call, const Slice& slice, const ClaimedSlice& claimed,
                      cuda::Stream stream) {
  uint64_t bytes = 0;
  for (uint32_t part = 0; part < claimed.parts; ++part) bytes += bytes_of_part(*claimed.slots[part]);
  if (!ring_.find(bytes, &place_)) return FORESHOCK_SKIP_RING_FULL;
  if (!gather(call, slice, claimed, stream)) return fail();
  if (!copy_and_publish(claimed)) fail();
  times_.expect(claimed.slots, claimed.ticket, claimed.parts);
  ring_.commit(&claimed.slots[0]->sequence, 2 * claimed.ticket);
  return -1;
}

}  // namespace foreshock
