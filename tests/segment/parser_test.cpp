#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>
#include <string>

#include "segment/checksum.h"
#include "segment/reader.h"

namespace foreshock::segment {
namespace {

// A slot as a trainer writes it: 2 rows of 8, 3 keys, fp32, backward, with a bool mask.
std::vector<std::byte> good_slot() {
  Slot slot = {};
  slot.pass = 1;
  slot.dtype = 2;
  slot.mask_dtype = 5;
  slot.lse_dtype = 2;
  slot.rows = 2;
  slot.keys = 3;
  slot.head_dim = slot.value_dim = 8;
  slot.heads_in_slice = 1;
  slot.query_length = 10;
  slot.key_length = 4;
  slot.scale = 0.5;
  slot.layer = -1;
  slot.seen_end[0] = 1;
  slot.seen_end[1] = 3;
  slot.position[1] = 9;
  uint64_t end = sizeof(Slot);
  const auto place = [&](PayloadId id, uint64_t bytes) {
    slot.payload[id] = {end, bytes};
    end = (end + bytes + 63) / 64 * 64;
  };
  place(kQuery, 2 * 8 * 4);
  place(kKey, 3 * 8 * 4);
  place(kValue, 3 * 8 * 4);
  place(kOut, 2 * 8 * 4);
  place(kLogSumExp, 2 * 4);
  place(kMask, 2 * 3);
  place(kGradOut, 2 * 8 * 4);
  place(kGradQuery, 2 * 8 * 4);
  std::vector<std::byte> bytes(end);
  std::memcpy(bytes.data(), &slot, sizeof slot);
  return bytes;
}

const char* parse_changed(const std::function<void(Slot&)>& change) {
  std::vector<std::byte> bytes = good_slot();
  Slot slot;
  std::memcpy(&slot, bytes.data(), sizeof slot);
  change(slot);
  std::memcpy(bytes.data(), &slot, sizeof slot);
  SlotView view;
  return parse_slot(bytes, &view);
}

void make_forward(Slot& slot) {
  slot.pass = 0;
  slot.payload[kGradOut] = slot.payload[kGradQuery] = {};
}

void make_dropped(Slot& slot) {
  slot.dropout = 0.5;
  slot.kept_dtype = 5;
  slot.payload[kKept] = {sizeof(Slot), 6};
}

TEST(ParseSlot, AcceptsDropoutAndASoftCap) {
  EXPECT_EQ(parse_changed(make_dropped), nullptr);
  EXPECT_EQ(parse_changed([](Slot& slot) { slot.soft_cap = 50; }), nullptr);
}

TEST(ParseSlot, AcceptsSlotsOfTheWriter) {
  const std::vector<std::byte> bytes = good_slot();
  SlotView view;
  ASSERT_EQ(parse_slot(bytes, &view), nullptr);
  EXPECT_EQ(view.payload[kKey].size(), 96u);
  EXPECT_EQ(view.payload[kMask].size(), 6u);
}

TEST(ParseSlot, RefusesEachWrongField) {
  const std::vector<std::pair<const char*, std::function<void(Slot&)>>> changes = {
      {"pass", [](Slot& s) { s.pass = 2; }},
      {"dtype", [](Slot& s) { s.dtype = 77; }},
      // The first of many parts of a slice that no agent can bear; each part would be small.
      {"too many keys",
       [](Slot& s) { s.parts = kMaxSlots, s.part_keys = 3, s.keys = (1u << 22) + 1, s.key_length = s.keys; }},
      {"too many bytes",
       [](Slot& s) {
         s.parts = kMaxSlots, s.part_keys = 3, s.keys = 1u << 22, s.key_length = s.keys;
         s.head_dim = 24, s.payload[kQuery].bytes = s.payload[kGradQuery].bytes = 2 * 24 * 4;
         s.payload[kKey].bytes = 3 * 24 * 4;
       }},
      {"dtype bool", [](Slot& s) { s.dtype = 5; }},
      {"no rows", [](Slot& s) { s.rows = 0; }},
      {"many rows", [](Slot& s) { s.rows = 17; }},
      {"no keys", [](Slot& s) { s.keys = 0; }},
      {"more keys than the call", [](Slot& s) { s.keys = 5; }},
      {"huge head_dim", [](Slot& s) { s.head_dim = 1u << 31; }},
      {"heads", [](Slot& s) { s.heads_in_slice = 0; }},
      {"heads do not divide", [](Slot& s) { s.heads_in_slice = 3; }},
      {"keys seen", [](Slot& s) { s.seen_end[1] = 4; }},
      {"keys seen before they begin", [](Slot& s) { s.seen_begin[1] = 4; }},
      {"window on the left", [](Slot& s) { s.window.left = -2; }},
      {"window on the right", [](Slot& s) { s.window.right = kMostWindow + 1; }},
      {"alignment of the window", [](Slot& s) { s.window.is_bottom_right = 2; }},
      {"position", [](Slot& s) { s.position[1] = 10; }},
      {"scale", [](Slot& s) { s.scale = NAN; }},
      {"scale zero", [](Slot& s) { s.scale = 0; }},
      {"mask dtype", [](Slot& s) { s.mask_dtype = 6; }},
      {"format of kept weights", [](Slot& s) { s.kept_dtype = 6, s.dropout = 0.5; }},
      {"kept weights missing", [](Slot& s) { s.kept_dtype = 5, s.dropout = 0.5; }},
      {"dropout without kept weights", [](Slot& s) { s.dropout = 0.5; }},
      {"dropout of all", [](Slot& s) { make_dropped(s), s.dropout = 1; }},
      {"dropout is not a number", [](Slot& s) { make_dropped(s), s.dropout = NAN; }},
      {"negative soft cap", [](Slot& s) { s.soft_cap = -1; }},
      {"soft cap is not a number", [](Slot& s) { s.soft_cap = NAN; }},
      {"infinite soft cap", [](Slot& s) { s.soft_cap = INFINITY; }},
      {"layer source", [](Slot& s) { s.layer_source = 9; }},
      {"offset beyond", [](Slot& s) { s.payload[kValue].offset = 1u << 20; }},
      {"offset wraps", [](Slot& s) { s.payload[kValue].offset = ~uint64_t{7}; }},
      {"offset inside the header", [](Slot& s) { s.payload[kValue].offset = 64; }},
      {"misaligned", [](Slot& s) { s.payload[kValue].offset += 4; }},
      {"size", [](Slot& s) { s.payload[kOut].bytes -= 4; }},
      {"absent query", [](Slot& s) { s.payload[kQuery] = {}; }},
      {"unexpected payload",
       [](Slot& s) {
         s.payload[10] = {sizeof(Slot), 8};
       }},
      {"forward with a gradient", [](Slot& s) { s.pass = 0; }},
      {"output missing", [](Slot& s) { s.payload[kOut] = {}; }},
      {"backward without output",
       [](Slot& s) {
         s.without_out = 1;
         s.payload[kOut] = {};
       }},
      {"output that is said not to be there", [](Slot& s) { make_forward(s), s.without_out = 1; }},
      {"unknown word of the output", [](Slot& s) { make_forward(s), s.without_out = 2; }},
      {"unknown kind", [](Slot& s) { s.columns = 2; }},
      {"key positions of another shape", [](Slot& s) { s.columns = 1; }},
      {"reason for no key positions", [](Slot& s) { s.columns_skip = kColumnsSkips; }},
  };
  for (const auto& [name, change] : changes) EXPECT_NE(parse_changed(change), nullptr) << name;
}

// Two key positions, with three query rows of each of two heads.
void make_columns(Slot& s) {
  s.columns = 1;
  s.mask_dtype = 0;
  s.lse_dtype = 2;
  s.heads_in_slice = 2;
  s.query_length = 3;
  s.keys = 6;
  s.rows = 2;
  s.head_dim = s.value_dim = 1;
  s.position[0] = s.position[1] = 0;
  s.seen_begin[0] = 0, s.seen_begin[1] = 3;
  s.seen_end[0] = s.seen_end[1] = 3;
  for (Payload& payload : s.payload) payload = {};
  for (const PayloadId id : {kQuery, kOut, kGradOut, kLogSumExp}) s.payload[id] = {sizeof(Slot), 24};
  for (const PayloadId id : {kKey, kValue, kGradKey, kGradValue}) s.payload[id] = {sizeof(Slot), 8};
  s.payload[kKeySums] = {sizeof(Slot), 3 * kKeySumBytes};
}

TEST(ParseSlot, SliceOfKeyPositionsHasItsOwnLimits) {
  const char* why = parse_changed(make_columns);
  EXPECT_EQ(why, nullptr) << why;
  const char* masked = parse_changed([](Slot& s) {
    make_columns(s);
    s.mask_dtype = 5;
    s.payload[kMask] = {sizeof(Slot), 12};
  });
  EXPECT_EQ(masked, nullptr) << masked;
  const std::vector<std::pair<const char*, std::function<void(Slot&)>>> changes = {
      {"forward", [](Slot& s) { s.pass = 0; }},
      {"packed", [](Slot& s) { s.packed = 1; }},
      {"no log-sum-exp", [](Slot& s) { s.lse_dtype = 0, s.payload[kLogSumExp] = {}; }},
      {"rows of no head", [](Slot& s) { s.query_length = 4; }},
      {"product wraps", [](Slot& s) { s.heads_in_slice = 2, s.query_length = (uint64_t{1} << 63) + 3; }},
      {"heads", [](Slot& s) { s.heads_in_slice = 0; }},
      {"queries beyond the last one", [](Slot& s) { s.seen_end[0] = 4; }},
      {"key position", [](Slot& s) { s.position[1] = 1000; }},
      {"gradient missing", [](Slot& s) { s.payload[kGradKey] = {}; }},
      {"sums missing", [](Slot& s) { s.payload[kKeySums] = {}; }},
      {"mask missing", [](Slot& s) { s.mask_dtype = 5; }},
      {"mask without a format",
       [](Slot& s) {
         s.payload[kMask] = {sizeof(Slot), 12};
       }},
      {"mask of the keys only",
       [](Slot& s) {
         s.mask_dtype = 5, s.payload[kMask] = {sizeof(Slot), 2};
       }},
      {"gradient of queries",
       [](Slot& s) {
         s.payload[kGradQuery] = {sizeof(Slot), 8};
       }},
      {"many", [](Slot& s) { s.rows = 17; }},
  };
  for (const auto& [name, change] : changes) {
    const auto both = [&change = change](Slot& s) {
      make_columns(s);
      change(s);
    };
    EXPECT_NE(parse_changed(both), nullptr) << name;
  }
}

TEST(ParseSlot, AcceptsAForwardSliceWithoutOutput) {
  EXPECT_EQ(parse_changed(make_forward), nullptr);
  const auto without = [](Slot& s) {
    make_forward(s);
    s.without_out = 1;
    s.payload[kOut] = {};
  };
  EXPECT_EQ(parse_changed(without), nullptr);
}

TEST(ParseSlot, RefusesEveryTruncation) {
  const std::vector<std::byte> bytes = good_slot();
  for (size_t size = 0; size + 64 < bytes.size(); size += 8) {
    SlotView view;
    // The last payload ends within the last 64 bytes; anything shorter cannot hold it.
    EXPECT_NE(parse_slot(Bytes(bytes).first(size), &view), nullptr) << size;
  }
}

TEST(ParseHeader, RefusesForeignFiles) {
  Header header;
  std::vector<std::byte> zeros(4096);
  EXPECT_NE(parse_header(zeros, 4096, &header), nullptr);
  EXPECT_NE(parse_header(Bytes(zeros).first(10), 10, &header), nullptr);
}

StepRecord step_record(uint64_t number) {
  StepRecord record = {};
  record.sequence = 2 * number;
  record.step = static_cast<int64_t>(number);
  record.checksum = checksum_of(record);
  return record;
}

TEST(ParseSteps, OrdersStepsAndCountsOverwrittenOnes) {
  std::vector<StepRecord> ring(4);
  for (uint64_t number = 5; number <= 8; ++number) ring[number % 4] = step_record(number);
  uint64_t lost = 0;
  auto steps = parse_steps(std::as_bytes(std::span(ring)), 2, &lost);
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps.front().step, 5);
  EXPECT_EQ(steps.back().step, 8);
  EXPECT_EQ(lost, 2u);  // 3 and 4
  steps = parse_steps(std::as_bytes(std::span(ring)), 7, &lost);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(lost, 0u);
  // A record being written, or changed by another process, is not believed.
  ring[9 % 4].sequence = 2 * 9;
  steps = parse_steps(std::as_bytes(std::span(ring)), 5, &lost);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(lost, 0u);
}

TEST(ParseThreads, SumsTheBlocks) {
  std::vector<ThreadBlock> region(2);
  for (uint64_t n = 0; n < 2; ++n) {
    region[n].calls[3] = 10 + n;
    region[n].calls[kMaxOps - 1] = 1;
    region[n].sampled[1] = 3;
    region[n].skipped[1][2] = 5;
    region[n].skipped[0][kSkipReasons - 1] = 7;
  }
  const Totals totals = parse_threads(std::as_bytes(std::span(region)));
  EXPECT_EQ(totals.calls[3], 21u);
  EXPECT_EQ(totals.calls[kMaxOps - 1], 2u);
  EXPECT_EQ(std::accumulate(totals.calls, totals.calls + kMaxOps, uint64_t{0}), 23u);
  EXPECT_EQ(totals.sampled[1], 6u);
  EXPECT_EQ(totals.skipped[1][2], 10u);
  EXPECT_EQ(totals.skipped[0][kSkipReasons - 1], 14u);
}

// A seed of an older layout is refused at its header, and the fuzzer then sees nothing behind it.
TEST(FuzzSeeds, HaveThisLayout) {
  int files = 0, slots = 0, split_columns = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FORESHOCK_SEGMENT_CORPUS)) {
    const std::string name = entry.path().filename();
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    const Bytes bytes = std::as_bytes(std::span(text)).subspan(1);  // the first one chooses the parser
    SlotView view;
    if (name.starts_with("slot_")) {
      EXPECT_EQ(parse_slot(bytes, &view), nullptr) << name;
      ++slots;
    }
    if (name.starts_with("tensor_gradient_look")) {
      TensorView tensor;
      EXPECT_EQ(parse_tensor(bytes, &tensor), nullptr) << name;
    }
    if (!name.starts_with("whole_file")) continue;
    Header header;
    ASSERT_EQ(parse_header(bytes, bytes.size(), &header), nullptr) << name;
    const Region& region = header.regions[kSlots];
    EXPECT_EQ(parse_slot(bytes.subspan(region.offset, region.record_size), &view), nullptr) << name;
    split_columns += view.header.columns == 1 && view.header.parts > 1;
    ++files;
  }
  EXPECT_GE(files, 3);
  EXPECT_GE(slots, 4);
  EXPECT_GE(split_columns, 1);
}

}  // namespace
}  // namespace foreshock::segment
