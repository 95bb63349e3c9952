// A slot as the trainer's side writes it, and as the agent's side reads it back.
#ifndef FORESHOCK_TESTS_LIBMONITOR_WRITTEN_SLOTS_H_
#define FORESHOCK_TESTS_LIBMONITOR_WRITTEN_SLOTS_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "libmonitor/call.h"
#include "segment/reader.h"

namespace foreshock {

inline std::vector<char> written(const ValidatedCall& call, const Slice& slice, const SlicePlan& plan,
                                 uint32_t part, size_t capacity) {
  std::vector<char> bytes(capacity);
  const segment::Slot slot = slot_of(plan, part);
  std::memcpy(bytes.data(), &slot, sizeof slot);
  copy_slot(call, slice, slot, bytes.data());
  return bytes;
}

inline segment::SlotView parsed(const std::vector<char>& bytes) {
  segment::SlotView view;
  const char* why = segment::parse_slot(std::as_bytes(std::span(bytes)), &view);
  EXPECT_EQ(why, nullptr) << why;
  return view;
}

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_WRITTEN_SLOTS_H_
