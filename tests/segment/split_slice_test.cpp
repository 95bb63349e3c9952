// Slices that lie in several slots: they cross whole or not at all, and count once.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "tests/segment/segment_files.h"

namespace foreshock::segment {
namespace {

using SplitSlices = SegmentFiles;

// Of a slice of one row and two keys a part.
Slot header_of(uint32_t parts) {
  Slot header = {};
  header.dtype = 1;  // fp64
  header.rows = header.head_dim = header.value_dim = header.heads_in_slice = 1;
  header.keys = 2 * parts;
  header.query_length = 1;
  header.key_length = header.keys;
  header.scale = 1;
  header.seen_end[0] = header.keys;
  return header;
}

// Part `part` of the slice, whose key n is ticket + n.
void fill_part(Slot* slot, uint64_t ticket, uint32_t part) {
  slot->first_key = 2 * part;
  slot->part_keys = 2;
  uint64_t at = (sizeof(Slot) + 63) / 64 * 64;
  const auto put = [&](PayloadId id, std::initializer_list<double> values) {
    slot->payload[id] = {at, values.size() * 8};
    std::memcpy(reinterpret_cast<char*>(slot) + at, values.begin(), values.size() * 8);
    at += 64;
  };
  const double first = static_cast<double>(ticket + slot->first_key);
  put(kKey, {first, first + 1});
  put(kValue, {first, first + 1});
  if (part == 0) {
    put(kQuery, {static_cast<double>(ticket)});
    put(kOut, {1});
  }
}

bool write_slice(const SegmentWriter& writer, uint64_t ticket, uint32_t parts) {
  Slot* slots[kMaxSlots];
  if (!writer.claim(ticket, parts, slots, header_of(parts))) return false;
  for (uint32_t part = 0; part < parts; ++part) fill_part(slots[part], ticket, part);
  writer.publish(slots, ticket, parts);
  return true;
}

void expect_slice(const SegmentReader::Ready& ready, uint32_t parts) {
  ASSERT_EQ(ready.why, nullptr) << ready.why;
  EXPECT_EQ(query_of(ready), static_cast<double>(ready.ticket));
  ASSERT_EQ(ready.view.payload[kKey].size(), 2 * parts * 8);
  for (uint32_t n = 0; n < 2 * parts; ++n) {
    double key = 0;
    std::memcpy(&key, ready.view.payload[kKey].data() + 8 * n, 8);
    EXPECT_EQ(key, static_cast<double>(ready.ticket + n));
  }
}

TEST_F(SplitSlices, ArriveWholeAndCountOnce) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer, 0, 0x10, 8), nullptr);
  auto reader = open();
  SegmentReader::Ready ready;
  uint64_t ticket = 1, slices = 0;
  for (uint32_t parts : {3, 4, 8, 2, 5, 7}) {  // around the ring again and again
    ASSERT_TRUE(write_slice(writer, ticket, parts));
    EXPECT_EQ(writer.free_slots(), 8 - parts);
    ASSERT_TRUE(reader->next_ready(&ready));
    EXPECT_EQ(ready.ticket, ticket);
    expect_slice(ready, parts);
    reader->consume_judged(ready);
    EXPECT_EQ(reader->judged(0), ++slices);
    EXPECT_EQ(writer.free_slots(), 8u);
    EXPECT_FALSE(reader->next_ready(&ready));
    ticket += parts;
  }
}

TEST_F(SplitSlices, AreReadWholeOrNotAtAll) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer, 0, 0x10, 8), nullptr);
  ASSERT_TRUE(write_slice(writer, 1, 3));
  ASSERT_TRUE(write_slice(writer, 4, 3));
  EXPECT_FALSE(write_slice(writer, 7, 4));  // slots 7 and 0 are free, 1 and 2 are not
  EXPECT_EQ(writer.free_slots(), 2u);
  Slot* slots[kMaxSlots];
  EXPECT_FALSE(writer.claim(7, 0, slots));
  EXPECT_FALSE(writer.claim(7, 9, slots));
  EXPECT_TRUE(write_slice(writer, 15, 2));
  auto reader = open();
  SegmentReader::Ready ready;
  uint64_t judged = 0;
  while (reader->next_ready(&ready)) {
    reader->consume_judged(ready);
    ++judged;
  }
  EXPECT_EQ(judged, 3u);
  EXPECT_EQ(writer.free_slots(), 8u);
  EXPECT_TRUE(reader->torn().empty());
}

TEST_F(SplitSlices, AnAgentKilledWhileReadingCountsNothingTwice) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer, 0, 0x10, 8), nullptr);
  ASSERT_TRUE(write_slice(writer, 1, 4));
  SegmentReader::Ready ready;
  {
    auto first = open();
    ASSERT_TRUE(first->next_ready(&ready));
    first->consume_judged(ready);
  }
  // As if it had died after the first of its stores: the tails are still there.
  const std::string control = directory_ + "/0-0000000000000010.ctl";
  const int fd = ::open(control.c_str(), O_RDWR);
  const Consumption none = {};
  for (uint32_t slot : {2u, 3u, 4u})
    ASSERT_EQ(pwrite(fd, &none, sizeof none, kConsumptionOffset + slot * sizeof none), ssize_t{sizeof none});
  close(fd);
  EXPECT_EQ(writer.free_slots(), 5u);
  auto second = open();
  EXPECT_FALSE(second->next_ready(&ready));
  EXPECT_EQ(second->judged(0), 1u);
  EXPECT_EQ(second->lost(0, Lost::kTorn) + second->lost(0, Lost::kRefused), 0u);
  EXPECT_EQ(writer.free_slots(), 8u);
}

// A writer that dies at any place loses one slice, as torn.
TEST_F(SplitSlices, AWriterKilledWhileWritingLeavesOneTornSlice) {
  // The slots of a slice of four parts, of which the file has the first `written`, with odd sequences.
  const auto begin = [](SegmentWriter& writer, uint32_t written, Slot** slots) {
    writer.claim(1, 4, slots, header_of(4));
    for (uint32_t part = 0; part < 4; ++part) fill_part(slots[part], 1, part);
    for (uint32_t part = 0; part < written; ++part) writer.write({{slots[part], writer.slot_bytes()}});
  };
  std::vector<std::function<void(SegmentWriter&)>> deaths;
  for (const uint32_t written : {1u, 2u, 4u})
    deaths.push_back([=](SegmentWriter& writer) {
      Slot* slots[kMaxSlots];
      begin(writer, written, slots);
    });
  deaths.push_back([=](SegmentWriter& writer) {  // with the tails published
    Slot* slots[kMaxSlots];
    begin(writer, 4, slots);
    for (uint32_t part = 1; part < 4; ++part) {
      slots[part]->sequence = 2 * (1 + part);
      writer.write({{&slots[part]->sequence, sizeof(uint64_t)}});
    }
  });
  uint64_t nonce = 0x10;
  for (const auto& death : deaths) {
    const pid_t child = fork();
    if (child == 0) {
      SegmentWriter writer;
      if (create(&writer, 0, nonce, 8) != nullptr) _exit(1);
      death(writer);
      write_slice(writer, 13, 2);  // another thread's, whole
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_EQ(status, 0);
    char name[32];
    std::snprintf(name, sizeof name, "0-%016llx", static_cast<unsigned long long>(nonce++));
    auto reader = open(name);
    SegmentReader::Ready ready;
    ASSERT_TRUE(reader->next_ready(&ready));
    EXPECT_EQ(ready.ticket, 13u);
    expect_slice(ready, 2);
    reader->consume_judged(ready);
    EXPECT_FALSE(reader->next_ready(&ready));
    const auto torn = reader->torn();
    ASSERT_EQ(torn.size(), 1u);
    EXPECT_EQ(torn[0].ticket, 1u);
    reader->consume_lost(torn[0], Lost::kTorn);
    EXPECT_TRUE(reader->torn().empty());
    reader->read_all_slots_next();
    EXPECT_FALSE(reader->next_ready(&ready));
    EXPECT_EQ(reader->lost(0, Lost::kTorn), 1u);
    EXPECT_EQ(reader->judged(0), 1u);
  }
}

TEST_F(SplitSlices, RefusesPartsOfDifferentSlices) {
  const std::vector<std::function<void(Slot*)>> changes = {
      [](Slot* slot) { slot->first_ticket = 9; }, [](Slot* slot) { slot->part = 2; },
      [](Slot* slot) { slot->first_key = 1; },    [](Slot* slot) { slot->part_keys = 3; },
      [](Slot* slot) { slot->keys = 100; },       [](Slot* slot) { slot->dtype = 2; },
      [](Slot* slot) { slot->parts = 60; },       [](Slot* slot) { slot->payload[kKey].offset = 1 << 20; },
      [](Slot* slot) { slot->ticket = 3; },       [](Slot* slot) { slot->sequence = 22; },
  };
  uint64_t nonce = 0x10;
  for (size_t which = 0; which < changes.size(); ++which) {
    for (uint32_t part : {0u, 1u}) {
      SegmentWriter writer;
      const int rank = static_cast<int>(nonce);
      ASSERT_EQ(create(&writer, rank, nonce, 8), nullptr);
      Slot* slots[kMaxSlots];
      ASSERT_TRUE(writer.claim(1, 3, slots, header_of(3)));
      for (uint32_t n = 0; n < 3; ++n) fill_part(slots[n], 1, n);
      writer.publish(slots, 1, 3);
      changes[which](slots[part]);
      writer.write({{slots[part], sizeof(Slot)}});
      char name[48];
      std::snprintf(name, sizeof name, "%d-%016llx", rank, static_cast<unsigned long long>(nonce++));
      auto reader = open(name);
      SegmentReader::Ready ready;
      while (reader->next_ready(&ready)) {
        EXPECT_NE(ready.why, nullptr) << which << " " << part;
        reader->consume_lost(ready, Lost::kRefused);
      }
      EXPECT_LE(reader->lost(0, Lost::kRefused), 1u) << which << " " << part;
      EXPECT_EQ(reader->judged(0), 0u);
    }
  }
}

// Once the first part is consumed a trainer may claim its slot, and its header is that of a slice of more
// parts, for one.
TEST_F(SplitSlices, TheNumberOfPartsIsNotReadFromAReusedSlot) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer, 0, 0x10, 8), nullptr);
  Slot* slots[kMaxSlots];
  ASSERT_TRUE(writer.claim(1, 2, slots, header_of(2)));
  for (uint32_t part = 0; part < 2; ++part) fill_part(slots[part], 1, part);
  writer.publish(slots, 1, 2);
  ASSERT_TRUE(write_slice(writer, 3, 2));
  auto reader = open();
  SegmentReader::Ready ready;
  ASSERT_TRUE(reader->next_ready(&ready));
  EXPECT_EQ(ready.ticket, 1u);
  slots[0]->parts = 4;
  writer.write({{slots[0], sizeof(Slot)}});
  reader->consume_judged(ready);
  ASSERT_TRUE(reader->next_ready(&ready)) << "the slice behind it";
  EXPECT_EQ(ready.ticket, 3u);
  expect_slice(ready, 2);
  reader->consume_judged(ready);
  EXPECT_FALSE(reader->next_ready(&ready));
  EXPECT_EQ(writer.free_slots(), 8u);
}

TEST_F(SplitSlices, ManyThreadsAndAReaderLoseNothing) {
  SegmentWriter writer;
  ASSERT_EQ(create(&writer, 0, 0x10, 8), nullptr);
  auto reader = open();
  std::atomic<uint64_t> tickets{0}, published{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (uint32_t parts : {2u, 3u, 4u}) {
    threads.emplace_back([&, parts] {
      for (int mine = 0; mine < 200;) {
        if (!write_slice(writer, tickets.fetch_add(parts) + 1, parts)) {
          std::this_thread::yield();
          continue;
        }
        published.fetch_add(1);
        ++mine;
      }
    });
  }
  std::thread judge([&] {
    judge_until(done, reader.get(),
                [](const SegmentReader::Ready& ready) { expect_slice(ready, ready.view.header.keys / 2); });
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  judge.join();
  EXPECT_EQ(reader->judged(0), published.load());
  EXPECT_EQ(published.load(), 600u);
  EXPECT_EQ(writer.free_slots(), 8u);
  EXPECT_TRUE(reader->torn().empty());
}

}  // namespace
}  // namespace foreshock::segment
