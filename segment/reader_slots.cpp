// The second half of SegmentReader: slices, which may lie in several slots.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "segment/packed_slice.h"
#include "segment/pread.h"
#include "segment/reader.h"

namespace foreshock::segment {
namespace {

// Header, queries, output and gradients: 16 rows of 4096 dimensions in 8 bytes, of each at most.
constexpr uint64_t kMostBesideKeys = uint64_t{4} << 20;
// What is kept for the next slice when there is none to be read.
constexpr size_t kMostKept = size_t{16} << 20;

}  // namespace

uint64_t SegmentReader::slot_offset(uint32_t slot) const {
  return header_.regions[kSlots].offset + header_.regions[kSlots].record_size * slot;
}

uint64_t SegmentReader::sequence_of(uint32_t slot) const {
  uint64_t sequence = 0;
  read_exactly(segment_, &sequence, sizeof sequence, slot_offset(slot));
  return sequence;
}

Slot SegmentReader::header_of(uint32_t slot) const {
  Slot header = {};
  read_exactly(segment_, &header, std::min<size_t>(header_.slot_header_size, sizeof header),
               slot_offset(slot));
  return header;
}

// One slot into the buffer, as far as its header says that payloads go, never more than the slot. False when
// it changed meanwhile.
bool SegmentReader::read_slot(uint32_t slot, uint64_t sequence, SlotView* view, const char** why) {
  const Slot head = header_of(slot);
  const uint64_t size = header_.regions[kSlots].record_size;
  uint64_t end = header_.slot_header_size;
  for (const Payload& payload : head.payload)
    if (payload.offset <= size && payload.bytes <= size - payload.offset)
      end = std::max(end, payload.offset + payload.bytes);
  if (end > kMostSliceBytes + kMostBesideKeys) {
    view->header = head;
    *why = "a slot larger than a slice may be";
    return sequence_of(slot) == sequence;
  }
  buffer_.resize(end);
  if (!read_exactly(segment_, buffer_.data(), end, slot_offset(slot))) return false;
  if (sequence_of(slot) != sequence) return false;
  *why = parse_slot({buffer_.data(), end}, header_.slot_header_size, view);
  if (*why == nullptr && view->header.ticket != sequence / 2) *why = "ticket differs";
  return true;
}

// Joins the other parts of the slice whose first one is in ready->view. They were published before it.
bool SegmentReader::read_parts(Ready* ready) {
  const uint64_t most = header_.regions[kSlots].record_size * slots();
  const uint32_t parts = ready->view.header.parts;
  ready->why = parts > slots() ? "more parts than slots" : joined_.begin(ready->view, most);
  for (uint32_t part = 1; part < parts && ready->why == nullptr; ++part) {
    const uint32_t slot = (ready->slot + part) % slots();
    const uint64_t sequence = sequence_of(slot);
    SlotView view;
    if (sequence != 2 * (ready->ticket + part)) {
      ready->why = "a part is missing";
    } else if (!read_slot(slot, sequence, &view, &ready->why)) {
      return false;
    }
    if (ready->why == nullptr) ready->why = joined_.add(view);
  }
  if (ready->why == nullptr) ready->view = joined_.take();
  return sequence_of(ready->slot) == 2 * ready->ticket;
}

// Slots that a slice takes whose first one has this header.
uint32_t SegmentReader::parts_of(const Slot& head, uint64_t ticket) const {
  return head.ticket == ticket && head.part == 0 ? std::clamp(head.parts, 1u, slots()) : 1;
}

bool SegmentReader::read_slice(uint32_t slot, uint64_t sequence, Ready* ready) {
  *ready = {};
  ready->slot = slot;
  ready->ticket = sequence / 2;
  if (!read_slot(slot, sequence, &ready->view, &ready->why)) return false;
  ready->parts = parts_of(ready->view.header, ready->ticket);
  if (ready->why == nullptr && ready->view.header.parts > 1 && !read_parts(ready)) return false;
  if (ready->why == nullptr) ready->why = settle_packed(&ready->view);
  return true;
}

// A further part whose first one was consumed before it, by an agent that died in between, or never was.
bool SegmentReader::is_orphan(const Slot& tail) const {
  const uint32_t first = static_cast<uint32_t>(tail.first_ticket % slots());
  const uint64_t sequence = (sequence_of(first) + 1) / 2 * 2;  // odd: it is still being written
  return sequence != 2 * tail.first_ticket || consumption_[first].consumed == tail.first_ticket;
}

bool SegmentReader::next_ready(Ready* ready) {
  // Read before the slots: what is published while they are looked at is found the next time.
  Progress progress = {};
  read_exactly(segment_, &progress, sizeof progress, header_.regions[kProgress].offset);
  if (!look_again_ && std::memcmp(&progress, &progress_, sizeof progress) == 0) return false;
  for (uint32_t tried = 0; tried < slots(); ++tried) {
    const uint32_t slot = next_slot_;
    next_slot_ = (next_slot_ + 1) % slots();
    const uint64_t sequence = sequence_of(slot);
    if (sequence % 2 != 0 || sequence == 2 * consumption_[slot].consumed) continue;
    const Slot head = header_of(slot);
    if (head.part == 0) {
      if (read_slice(slot, sequence, ready)) return true;
    } else if (is_orphan(head)) {
      consumption_[slot].consumed = sequence / 2;
      store_consumption(slot);
    }
  }
  progress_ = progress;
  look_again_ = false;
  if (buffer_.capacity() > kMostKept) buffer_ = {};
  joined_.keep_at_most(kMostKept);
  return false;
}

// Whether the writer that left this ticket half-written was filling a further part of a slice: then the first
// part answers for it. Its own header may not tell yet.
bool SegmentReader::is_tail_of_another(uint64_t ticket) const {
  for (uint32_t slot = 0; slot < slots(); ++slot) {
    const Slot head = header_of(slot);
    if (head.part == 0 && head.parts > 1 && head.parts <= slots() && (head.sequence + 1) / 2 == head.ticket &&
        ticket > head.ticket && ticket - head.ticket < head.parts)
      return true;
  }
  return false;
}

std::vector<SegmentReader::Ready> SegmentReader::torn() {
  std::vector<Ready> result;
  for (uint32_t slot = 0; slot < slots(); ++slot) {
    const uint64_t sequence = sequence_of(slot);
    const uint64_t ticket = (sequence + 1) / 2;
    if (sequence % 2 == 0 || ticket == consumption_[slot].consumed || is_tail_of_another(ticket)) continue;
    Ready ready;
    ready.slot = slot;
    ready.ticket = ticket;
    ready.why = "its writer died in the middle";
    ready.view.header = header_of(slot);
    ready.parts = parts_of(ready.view.header, ticket);
    if (ready.view.header.pass >= kPasses) ready.view.header.pass = 0;
    result.push_back(ready);
  }
  return result;
}

void SegmentReader::store_consumption(uint32_t slot) {
  write_field(control_file_, consumption_[slot], kConsumptionOffset + slot * sizeof(Consumption));
}

// The further parts last, and without counting: what an agent leaves that dies in between is an orphan. The
// slot of the first one may be another slice's by then.
void SegmentReader::consume(const Ready& ready) {
  consumption_[ready.slot].consumed = ready.ticket;
  store_consumption(ready.slot);
  for (uint32_t part = 1; part < ready.parts; ++part) {
    const uint32_t tail = (ready.slot + part) % slots();
    if ((sequence_of(tail) + 1) / 2 != ready.ticket + part) continue;
    consumption_[tail].consumed = ready.ticket + part;
    store_consumption(tail);
  }
}

void SegmentReader::consume_judged(const Ready& ready) {
  ++consumption_[ready.slot].judged[ready.view.header.pass % kPasses];
  consume(ready);
}

void SegmentReader::consume_lost(const Ready& ready, Lost reason) {
  ++consumption_[ready.slot].lost[ready.view.header.pass % kPasses][static_cast<uint32_t>(reason)];
  consume(ready);
}

}  // namespace foreshock::segment
