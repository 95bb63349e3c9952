// The slot protocol under load: many writers, a reader that is slow, dies between reading and acknowledging,
// and comes back. Every count is conserved. Run under ThreadSanitizer as well (./dev test).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/segment/segment_files.h"

namespace foreshock::segment {
namespace {

using namespace std::chrono_literals;

constexpr int kWriters = 6;
constexpr uint64_t kTicketsEach = 4000;
constexpr uint32_t kSlots = 8;
constexpr uint64_t kSteps = 3000;
constexpr int kSlicesRead = 500;  // the writers go on until the agent has read these, however late it starts

class SlotStress : public SegmentFiles {
 protected:
  // Attention calls of one thread: each ends as sampled or as ring_full. Every 7th slice is one that the
  // parser refuses.
  void write_slices() {
    for (uint64_t n = 0; n < kTicketsEach || read_ < kSlicesRead; ++n) {
      const uint64_t ticket = tickets_.fetch_add(1) + 1;
      Slot* slot = writer_.claim(ticket);
      if (slot == nullptr) {
        ring_full_.fetch_add(1);
        if (n % 16 == 0) std::this_thread::sleep_for(50us);
        continue;
      }
      sampled_.fetch_add(1);
      fill(slot, ticket);
      if (ticket % 7 == 0) slot->rows = kRowsPerSlice + 1;
      writer_.publish(slot, ticket);
    }
  }
  void write_steps() {
    for (uint64_t n = 1; n <= kSteps; ++n) {
      StepRecord record = {};
      record.step = static_cast<int64_t>(n);
      record.loss = static_cast<double>(n);
      writer_.append_step(record);
      if (n % 64 == 0) std::this_thread::sleep_for(100us);
    }
  }

  void take_steps(SegmentReader& reader) {
    for (const StepRecord& record : reader.new_steps()) {
      ASSERT_EQ(record.loss, static_cast<double>(record.step)) << "a torn record";
      ASSERT_GT(record.step, last_step_) << "taken twice, or out of order";
      last_step_ = record.step;
    }
  }
  void acknowledge(SegmentReader& reader, const SegmentReader::Ready& ready) {
    if (ready.why != nullptr) return reader.consume_lost(ready, Lost::kRefused);
    ASSERT_EQ(query_of(ready), static_cast<double>(ready.ticket)) << "a torn slice";
    reader.consume_judged(ready);
  }
  // One life of the agent: some slices, then it dies with one of them read and not acknowledged.
  void read_for_a_life(int slices) {
    const auto reader = open();
    SegmentReader::Ready ready;
    for (int n = 0; reader->next_ready(&ready);) {
      take_steps(*reader);
      if (++n > slices) return;
      if (n % 32 == 0) std::this_thread::sleep_for(200us);  // slow
      acknowledge(*reader, ready);
      read_.fetch_add(1);
    }
    take_steps(*reader);
  }

  SegmentWriter writer_;
  std::atomic<uint64_t> tickets_{0}, sampled_{0}, ring_full_{0};
  std::atomic<int> read_{0};  // slices that the agent has acknowledged
  int64_t last_step_ = 0;
};

TEST_F(SlotStress, CountsAreConservedOverRestartsOfASlowReader) {
  ASSERT_EQ(create(&writer_, 0, 0x10, kSlots), nullptr);
  std::atomic<bool> done{false};
  std::thread agent([&] {
    for (int life = 1; !done.load(); ++life) read_for_a_life(life % 100);
  });
  std::vector<std::thread> threads;
  for (int n = 0; n < kWriters; ++n) threads.emplace_back([this] { write_slices(); });
  threads.emplace_back([this] { write_steps(); });
  for (std::thread& thread : threads) thread.join();
  done = true;
  agent.join();
  read_for_a_life(1 << 30);  // what was left

  EXPECT_EQ(sampled_ + ring_full_, tickets_.load()) << "every call ends as one of the two";
  EXPECT_GE(tickets_.load(), kWriters * kTicketsEach);
  const auto reader = open();
  EXPECT_EQ(reader->judged(0) + reader->lost(0, Lost::kRefused), sampled_.load());
  EXPECT_GT(reader->judged(0), kSlots) << "the reader was really there";
  EXPECT_GT(reader->lost(0, Lost::kRefused), 0u);
  EXPECT_TRUE(reader->torn().empty());
  EXPECT_EQ(writer_.free_slots(), kSlots) << "every slot can be had again";
  EXPECT_EQ(reader->steps_consumed() + reader->steps_lost(), kSteps);
}

// A thread of a killed trainer leaves its slot odd: lost once, whoever looks.
TEST_F(SlotStress, SlotsOfDeadWritersAreLostOnce) {
  ASSERT_EQ(create(&writer_, 0, 0x10, kSlots), nullptr);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> torn{0};
  for (int n = 0; n < 4; ++n)
    threads.emplace_back([&] {
      const uint64_t ticket = tickets_.fetch_add(1) + 1;
      Slot* slot = writer_.claim(ticket);
      if (slot == nullptr) return;
      writer_.write({{slot, sizeof *slot}});  // the first half of publish()
      torn.fetch_add(1);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn.load(), 4u);
  for (int life = 0; life < 2; ++life) {
    const auto reader = open();
    SegmentReader::Ready ready;
    EXPECT_FALSE(reader->next_ready(&ready));
    for (const SegmentReader::Ready& each : reader->torn()) reader->consume_lost(each, Lost::kTorn);
    EXPECT_EQ(reader->lost(0, Lost::kTorn), torn.load());
  }
}

}  // namespace
}  // namespace foreshock::segment
