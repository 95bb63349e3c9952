// Checksums of what a trainer writes into a segment: of a step record, and of a slice in a slot. Other
// processes of the user can write into the file; the agent recognizes by these sums what they have changed,
// and what it has read while it was being written. They do not resist a process that computes them too.
#ifndef FORESHOCK_SEGMENT_CHECKSUM_H_
#define FORESHOCK_SEGMENT_CHECKSUM_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "segment/layout.h"

namespace foreshock::segment {

// Mixes bytes into a sum. Four independent lanes of 8 bytes, so that the multiplications overlap. Every step
// of a lane is a bijection of the lane, so a change of a single word always changes the sum.
class Checksum {
 public:
  void add(const void* data, size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    uint64_t words[kLanes];
    for (; bytes >= sizeof words; from += sizeof words, bytes -= sizeof words) {
      std::memcpy(words, from, sizeof words);
      for (size_t n = 0; n < kLanes; ++n) mix(lane_[n], words[n]);
    }
    std::fill_n(words, kLanes, uint64_t{0});
    std::memcpy(words, from, bytes);
    for (size_t n = 0; n < kLanes; ++n) mix(lane_[n], words[n]);
    mix(lane_[0], bytes);  // so that zeros at the end count
  }
  // Never 0, which stands for no checksum.
  uint32_t value() const {
    uint64_t sum = 0;
    for (const uint64_t lane : lane_) mix(sum, lane);
    sum ^= sum >> 32;
    return std::max<uint32_t>(1, static_cast<uint32_t>(sum));
  }

 private:
  static constexpr size_t kLanes = 4;
  static void mix(uint64_t& lane, uint64_t word) {
    lane = std::rotl((lane ^ word) * 0x9e3779b97f4a7c15u, 29);  // odd factor: 2^64 / golden ratio
  }
  uint64_t lane_[kLanes] = {1, 2, 3, 4};
};

// The checksum of all other fields of the record, without the arrays of scalars if scalars_given is 0.
inline uint32_t checksum_of(const StepRecord& record) {
  Checksum sum;
  sum.add(&record, offsetof(StepRecord, checksum));
  if (record.scalars_given != 0) {
    sum.add(record.scalars, sizeof record.scalars);
    sum.add(record.scalar_step, sizeof record.scalar_step);
  }
  return sum.value();
}

// Whether the payload lies inside a slot or tensor record of `bytes` bytes, after its header. A payload of 0
// bytes is absent, and its offset means nothing.
template <class Header = Slot>
constexpr bool lies_inside(const Payload& payload, uint64_t bytes) {
  return payload.offset >= sizeof(Header) && payload.offset <= bytes &&
         payload.bytes <= bytes - payload.offset;
}

// The end of the last payload that lies inside a slot of `slot_bytes` bytes.
constexpr uint64_t end_of_payloads(const Slot& header, uint64_t slot_bytes) {
  uint64_t end = sizeof(Slot);
  for (const Payload& payload : header.payload)
    if (payload.bytes > 0 && lies_inside(payload, slot_bytes))
      end = std::max(end, payload.offset + payload.bytes);
  return end;
}

// The checksum of a slot of `slot_bytes` bytes: of its header without the sequence, which says when the slot
// is complete, the times of devices and the checksum, and of the payloads that lie inside the slot.
inline uint32_t checksum_of(const Slot& header, const char* slot, uint64_t slot_bytes) {
  constexpr size_t kTimes = offsetof(Slot, device_begin_ns), kAfterTimes = offsetof(Slot, first_ticket);
  const auto* fields = reinterpret_cast<const char*>(&header);
  Checksum sum;
  sum.add(fields + sizeof header.sequence, kTimes - sizeof header.sequence);
  sum.add(fields + kAfterTimes, offsetof(Slot, checksum) - kAfterTimes);
  for (const Payload& payload : header.payload)
    if (payload.bytes > 0 && lies_inside(payload, slot_bytes)) sum.add(slot + payload.offset, payload.bytes);
  return sum.value();
}

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_CHECKSUM_H_
