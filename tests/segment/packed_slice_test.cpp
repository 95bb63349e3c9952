#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "segment/reader.h"
#include "tests/segment/segment_files.h"

namespace foreshock::segment {
namespace {

constexpr KeyWindow kSeesAll, kTopLeft = {-1, 0, 0}, kBottomRight = {-1, 0, 1};

// Planned for 2 heads of 4 positions and 10 keys of fp32, of a sequence of 12 queries at most; it has 6
// queries and 7 keys.
struct PackedSlice {
  Slot slot = {};
  std::vector<std::byte> bytes;

  explicit PackedSlice(const KeyWindow& window, uint32_t pass = 0, uint32_t packed = kPacked) {
    slot.pass = pass;
    slot.dtype = slot.lse_dtype = 2;
    slot.heads_in_slice = 2;
    slot.rows = 8;
    slot.keys = 10;
    slot.head_dim = 3;
    slot.value_dim = 5;
    slot.query_length = 12;
    slot.key_length = 10;
    slot.scale = 0.5;
    slot.layer = -1;
    slot.batch = 0;
    for (uint32_t row = 0; row < slot.rows; ++row) {
      slot.seen_end[row] = 10;
      slot.position[row] = row % 4 * 3;
      slot.head[row] = 6 + row / 4;
    }
    slot.window = window;
    slot.packed = packed;
    slot.told = {.number = 31, .queries = 6, .keys = 7, .positions = 3, .position = {1, 3, 5}};
    uint64_t sizes[kPayloads], end = sizeof(Slot);
    payload_sizes(slot, sizes);
    for (uint32_t id = 0; id < kPayloads; ++id) {
      slot.payload[id] = {sizes[id] != 0 ? end : 0, sizes[id]};
      end += (sizes[id] + 63) / 64 * 64;
    }
    bytes.resize(end);
    for (size_t n = sizeof(Slot); n < end; ++n) bytes[n] = static_cast<std::byte>(n * 7);
  }

  const char* parse(SlotView* view) {
    std::memcpy(bytes.data(), &slot, sizeof slot);
    return parse_slot(bytes, view);
  }
};

std::vector<uint32_t> firsts(const uint32_t (&words)[kRowsPerSlice], uint32_t count) {
  return {words, words + count};
}

using Words = std::vector<uint32_t>;

TEST(SettlePacked, KeepsTheRowsOfOneSequence) {
  struct Kind {
    KeyWindow window;
    Words begins, ends;
  };
  const Words zeros = {0, 0, 0, 0, 0, 0};
  const Kind kinds[] = {{kSeesAll, zeros, {7, 7, 7, 7, 7, 7}},
                        {kTopLeft, zeros, {2, 4, 6, 2, 4, 6}},
                        {kBottomRight, zeros, {3, 5, 7, 3, 5, 7}},
                        // The sequence has one key more than queries, so query i has the own key i + 1.
                        {{2, 0, 1}, {0, 2, 4, 0, 2, 4}, {3, 5, 7, 3, 5, 7}},
                        {{1, 2, 0}, {0, 2, 4, 0, 2, 4}, {4, 6, 7, 4, 6, 7}},
                        {{0, -1, 1}, {2, 4, 6, 2, 4, 6}, {7, 7, 7, 7, 7, 7}},
                        {{100, 100, 1}, zeros, {7, 7, 7, 7, 7, 7}}};
  for (const auto& [window, begins, limits] : kinds) {
    for (const uint32_t pass : {0u, 1u}) {
      PackedSlice planned(window, pass);
      SlotView view;
      ASSERT_EQ(planned.parse(&view), nullptr);
      const SlotView before = view;
      ASSERT_EQ(settle_packed(&view), nullptr);
      const Slot& slot = view.header;
      EXPECT_EQ(slot.packed, kNotPacked);
      EXPECT_EQ(slot.rows, 6u);
      EXPECT_EQ(slot.keys, *std::max_element(limits.begin(), limits.end()));
      EXPECT_EQ(slot.batch, 31);
      EXPECT_EQ(slot.query_length, 6u);
      EXPECT_EQ(slot.key_length, 7u);
      EXPECT_EQ(firsts(slot.seen_begin, 6), begins);
      EXPECT_EQ(firsts(slot.seen_end, 6), limits);
      EXPECT_EQ(firsts(slot.position, 6), Words({1, 3, 5, 1, 3, 5}));
      EXPECT_EQ(firsts(slot.head, 6), Words({6, 6, 6, 7, 7, 7}));
      // Every payload begins where it did and is that of the dimensions.
      uint64_t sizes[kPayloads];
      payload_sizes(slot, sizes);
      for (uint32_t id = 0; id < kPayloads; ++id) {
        EXPECT_EQ(view.payload[id].size(), sizes[id]) << id;
        if (sizes[id] == 0) continue;
        EXPECT_EQ(view.payload[id].data(), before.payload[id].data());
      }
      EXPECT_EQ(sizes[kKey], slot.keys * 3 * 4);
      EXPECT_EQ(sizes[kOut], 6u * 5 * 4);
    }
  }
}

TEST(SettlePacked, HasThePlannedNumberOfPositions) {
  PackedSlice planned(kTopLeft);
  planned.slot.told = {.number = 0, .queries = 12, .keys = 10, .positions = 4, .position = {0, 4, 7, 11}};
  SlotView view;
  ASSERT_EQ(planned.parse(&view), nullptr);
  ASSERT_EQ(settle_packed(&view), nullptr);
  EXPECT_EQ(firsts(view.header.seen_end, 8), Words({1, 5, 8, 10, 1, 5, 8, 10}));
  EXPECT_EQ(firsts(view.header.head, 8), Words({6, 6, 6, 6, 7, 7, 7, 7}));
}

TEST(SettlePacked, LeavesUnpackedSlicesUnchanged) {
  PackedSlice other(kSeesAll, 0, kNotPacked);
  SlotView view;
  ASSERT_EQ(other.parse(&view), nullptr);
  ASSERT_EQ(settle_packed(&view), nullptr);
  EXPECT_EQ(std::memcmp(&view.header, &other.slot, sizeof other.slot), 0);
  EXPECT_EQ(view.payload[kKey].size(), 10u * 3 * 4);
}

const char* settle_changed(const KeyWindow& window, const std::function<void(SequenceTold&)>& change,
                           Slot* settled) {
  PackedSlice planned(window);
  change(planned.slot.told);
  SlotView view;
  EXPECT_EQ(planned.parse(&view), nullptr);
  const char* why = settle_packed(&view);
  *settled = view.header;
  for (const Bytes& payload : view.payload)
    EXPECT_TRUE(why != nullptr || settled->rows > 0 || payload.empty());
  return why;
}

TEST(SettlePacked, HasNoRowsIfNoneWereCopied) {
  struct Nothing {
    KeyWindow window;
    std::function<void(SequenceTold&)> change;
  };
  const Nothing nothing[] = {
      {kSeesAll, [](SequenceTold& t) { t = {}; }},
      {kSeesAll, [](SequenceTold& t) { t.keys = 0; }},
      {kTopLeft, [](SequenceTold& t) { t.queries = 0; }},
      {kBottomRight, [](SequenceTold& t) { t.keys = 5; }},  // its first query sees nothing
      {{0, -1, 0}, [](SequenceTold& t) { t.keys = 5; }},    // its last query sees nothing
  };
  for (const auto& [window, change] : nothing) {
    Slot slot;
    EXPECT_EQ(settle_changed(window, change, &slot), nullptr);
    EXPECT_EQ(slot.rows, 0u);
    EXPECT_EQ(slot.keys, 0u);
  }
  Slot slot;
  EXPECT_EQ(settle_changed(
                kTopLeft, [](SequenceTold& t) { t.keys = 5; }, &slot),
            nullptr);
  EXPECT_EQ(slot.rows, 6u);
}

TEST(SettlePacked, RefusesInvalidPlans) {
  const std::function<void(SequenceTold&)> changes[] = {
      [](SequenceTold& t) { t.queries = 13; },      [](SequenceTold& t) { t.keys = 11; },
      [](SequenceTold& t) { t.keys = ~0u; },        [](SequenceTold& t) { t.positions = 5; },
      [](SequenceTold& t) { t.queries = 2; },       [](SequenceTold& t) { t.position[2] = 6; },
      [](SequenceTold& t) { t.position[0] = ~0u; }, [](SequenceTold& t) { t.positions = ~0u; },
  };
  Slot slot;
  for (const auto& change : changes) EXPECT_NE(settle_changed(kTopLeft, change, &slot), nullptr);
  // Fewer keys were planned than its rows would see.
  PackedSlice planned(kSeesAll);
  planned.slot.key_length = 20;
  planned.slot.told.keys = 11;
  SlotView view;
  ASSERT_EQ(planned.parse(&view), nullptr);
  EXPECT_NE(settle_packed(&view), nullptr);
}

TEST(SettlePacked, RefusesAMaskAndAnUnknownKind) {
  SlotView view;
  PackedSlice unknown(kTopLeft, 0, kPacked + 1);
  EXPECT_NE(unknown.parse(&view), nullptr);
  PackedSlice masked(kTopLeft, 0, kNotPacked);
  masked.slot.mask_dtype = 5;
  masked.slot.payload[kMask] = {masked.slot.payload[kKey].offset, 80};
  EXPECT_EQ(masked.parse(&view), nullptr);
  masked.slot.packed = kPacked;
  EXPECT_NE(masked.parse(&view), nullptr);
}

TEST(SettlePacked, DoesNotJoinPartsOfDifferentSequences) {
  PackedSlice first(kTopLeft), second(kTopLeft);
  for (PackedSlice* part : {&first, &second}) {
    Slot& slot = part->slot;
    slot.parts = 2;
    slot.part = part == &second;
    slot.first_key = slot.part * 5;
    slot.part_keys = 5;
    uint64_t sizes[kPayloads];
    payload_sizes(slot, sizes);
    for (uint32_t id = 0; id < kPayloads; ++id)
      slot.payload[id] = {sizes[id] != 0 ? slot.payload[id].offset : 0, sizes[id]};
  }
  const auto join = [&]() -> const char* {
    SlotView a, b;
    EXPECT_EQ(first.parse(&a), nullptr);
    EXPECT_EQ(second.parse(&b), nullptr);
    JoinedSlice joined;
    const char* why = joined.begin(a, 1 << 20);
    return why != nullptr ? why : joined.add(b);
  };
  EXPECT_EQ(join(), nullptr);
  second.slot.told.keys = 6;
  EXPECT_NE(join(), nullptr);
}

}  // namespace
}  // namespace foreshock::segment
