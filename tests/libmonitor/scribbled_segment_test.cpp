// The trainer's side of a segment while another process of the user writes into the file: nothing outside of
// the segment changes, and what is counted stays right. The other process writes with pwrite().
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "libmonitor/call.h"
#include "libmonitor/layers.h"
#include "libmonitor/step_numbers.h"
#include "segment/writer.h"
#include "tests/libmonitor/call_on_tensors.h"

namespace foreshock {
namespace {

using segment::Slot;

constexpr uint32_t kSlots = 4;
constexpr uint64_t kSlotBytes = 16 << 10, kTensorBytes = 64 << 10, kNonce = 7;

class ScribbledSegment : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/dev/shm/foreshock-test-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) GTEST_SKIP() << "no tmpfs at /dev/shm";
    base_ = pattern;
    ASSERT_EQ(writer_.create({base_.c_str(), 0, kNonce, kSlots, kSlotBytes, kTensorBytes}), nullptr);
    const std::string name = base_ + "/0-0000000000000007";
    segment_ = open((name + ".seg").c_str(), O_RDWR | O_CLOEXEC);
    control_ = open((name + ".ctl").c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(pread(segment_, &header_, sizeof header_, 0), ssize_t{sizeof header_});
    begin_ = writer_.slot_region() - header_.regions[segment::kSlots].offset;
    tensors_.attach(writer_.tensors(), writer_.tensor_bytes(), &writer_);
    layers_.attach(writer_.layers());
    scalars_.attach(writer_.scalar_names());
    call_.build(true);
    ASSERT_EQ(validate_call(call_.call, FORESHOCK_BACKWARD, &checked_), -1);
    slice_ = choose_slice(checked_.shape, 1, 2, 3, 0);
    ASSERT_TRUE(plan_slice(checked_, writer_.slot_bytes(), writer_.slots(), &slice_, &plan_));
  }
  void TearDown() override {
    close(segment_);
    close(control_);
    std::filesystem::remove_all(base_);
  }

  // A region whose offset from the segment leads to `victim_`.
  uint64_t to_victim() const { return static_cast<uint64_t>(victim_.data() + victim_.size() / 2 - begin_); }

  // Does once what a trainer does with its segment. Returns whether the slice found a free slot.
  bool use(uint64_t ticket) {
    Slot* slots[segment::kMaxSlots];
    const bool is_written = write_slice(checked_, slice_, plan_, writer_, ticket, slots) > 0;
    if (is_written) writer_.publish(slots, ticket, plan_.slots);
    segment::StepRecord step = {};
    step.step = static_cast<int64_t>(ticket);
    step.loss = 1;
    writer_.complete_step(writer_.append_step(step), step);
    writer_.count(&segment::Coverage::numbers_late, 1);
    writer_.count_skipped_numbers(FORESHOCK_SKIP_DEVICE, 1);
    layers_.name({sizeof(foreshock_parameter), FORESHOCK_ABI_VERSION, &call_, "model.0.weight", "000", 1});
    const foreshock_mixer mixer = {sizeof mixer, FORESHOCK_ABI_VERSION,     "000",
                                   "Attention",  FORESHOCK_MIXER_ATTENTION, 1};
    layers_.name_mixers(&mixer, 1, writer_.coverage());
    layers_.mark(0, segment::kForwardSeen, FORESHOCK_FORWARD, 1u << FORESHOCK_SKIP_MASK);
    layers_.add_gradient(&call_, 4);
    double norm = 0;
    EXPECT_TRUE(layers_.publish_gradients(step.step, &norm));
    EXPECT_EQ(norm, 2);
    scalars_.observe("loss", 1, -1);
    writer_.publish_facts();
    put_tensor();
    return is_written;
  }
  void put_tensor() {
    uint64_t room = 0;
    if (tensors_.begin(4096, &room) == nullptr) return;
    segment::TensorRecord record = {};
    record.bytes = 4096;
    tensors_.publish_snapshot(&record);
  }
  // The agent consumes the ticket.
  void consume(uint64_t ticket) const {
    const uint64_t at = segment::kConsumptionOffset + ticket % kSlots * sizeof(segment::Consumption);
    ASSERT_EQ(pwrite(control_, &ticket, sizeof ticket, static_cast<off_t>(at)), ssize_t{sizeof ticket});
  }
  template <class T>
  void scribble(uint64_t at, const T& value) const {
    ASSERT_EQ(pwrite(segment_, &value, sizeof value, static_cast<off_t>(at)), ssize_t{sizeof value});
  }
  void expect_no_change_outside() const {
    EXPECT_EQ(std::count(victim_.begin(), victim_.end(), 0), static_cast<ptrdiff_t>(victim_.size()));
    EXPECT_EQ(writer_.slots(), kSlots);
    EXPECT_EQ(writer_.slot_bytes(), kSlotBytes);
  }

  std::string base_;
  segment::SegmentWriter writer_;
  segment::TensorWriter tensors_;
  LayerTable layers_;
  Scalars scalars_;
  int segment_ = -1, control_ = -1;
  segment::Header header_ = {};  // as it was created
  char* begin_ = nullptr;        // of the image
  std::vector<char> victim_ = std::vector<char>(8 << 20);
  CallOnTensors call_;
  ValidatedCall checked_;
  Slice slice_;
  SlicePlan plan_;
};

// Each region in turn, and all at once, leads to memory of the trainer, or nowhere.
TEST_F(ScribbledSegment, RedirectedRegionsDoNotWriteOutside) {
  uint64_t ticket = 1;
  for (const uint64_t offset : {to_victim(), ~uint64_t{0}, uint64_t{0}}) {
    for (uint32_t region = 0; region <= segment::kRegions; ++region) {
      segment::Header header = header_;
      for (uint32_t n = 0; n < segment::kRegions; ++n)
        if (n == region || region == segment::kRegions) header.regions[n] = {offset, 1 << 20, ~uint64_t{0}};
      scribble(0, header);
      EXPECT_TRUE(use(ticket)) << region;
      consume(ticket++);
    }
  }
  expect_no_change_outside();
}

TEST_F(ScribbledSegment, AScribbledSegmentOfAnyContentDoesNotWriteOutside) {
  std::mt19937_64 random(1);
  std::vector<uint64_t> content(header_.file_size / sizeof(uint64_t));
  const auto any_word = [&] { return random() % 4 == 0 ? to_victim() : random(); };
  for (uint64_t ticket = 1; ticket <= 24; ++ticket) {
    for (uint64_t& word : content) word = ticket % 3 == 0 ? 0 : ticket % 3 == 1 ? ~uint64_t{0} : any_word();
    ASSERT_EQ(pwrite(segment_, content.data(), header_.file_size, 0), ssize_t(header_.file_size));
    EXPECT_TRUE(use(ticket)) << "the slot is free whatever its sequence in the segment says";
    consume(ticket);
  }
  expect_no_change_outside();
}

// Another process rewrites the headers of slots, above all the offsets of payloads, while slices are copied.
TEST_F(ScribbledSegment, ARaceForTheSlotsDoesNotWriteOutside) {
  std::atomic<bool> is_done{false};
  std::thread other([&] {
    Slot forged = {};
    std::memset(static_cast<void*>(&forged), 0xff, sizeof forged);
    for (segment::Payload& payload : forged.payload)
      payload = {static_cast<uint64_t>(victim_.data() + (4 << 20) - writer_.slot_region()), 1 << 20};
    forged.parts = forged.part = 0;
    forged.columns = 0;
    forged.keys = 1;
    for (uint32_t n = 0; !is_done.load(); ++n) {
      const uint64_t at = header_.regions[segment::kSlots].offset + n % kSlots * kSlotBytes;
      scribble(at, forged);  // the sequence and the ticket too
    }
  });
  for (uint64_t ticket = 1; ticket <= 3000; ++ticket) {
    EXPECT_TRUE(use(ticket));
    consume(ticket);
  }
  is_done.store(true);
  other.join();
  expect_no_change_outside();
}

// What the trainer counts stays right in the segment, whatever was there before.
TEST_F(ScribbledSegment, CountsDoNotComeFromTheSegment) {
  put_tensor();
  tensors_.count_due(2);
  tensors_.count_skipped(segment::kTensorBudget);
  const uint64_t at = header_.regions[segment::kTensors].offset;
  segment::TensorRing ring;
  std::memset(static_cast<void*>(&ring), 0xff, sizeof ring);
  scribble(at, ring);
  put_tensor();
  tensors_.count_due(2);
  tensors_.count_skipped(segment::kTensorBudget);
  writer_.publish_facts();
  ASSERT_EQ(pread(segment_, &ring, sizeof ring, static_cast<off_t>(at)), ssize_t{sizeof ring});
  EXPECT_EQ(ring.written, 8192u);
  EXPECT_EQ(ring.snapshots_taken, 2u);
  EXPECT_EQ(ring.due, 4u);
  EXPECT_EQ(ring.skipped[segment::kTensorBudget], 2u);
  scribble(header_.regions[segment::kCoverage].offset, ~uint64_t{0});
  writer_.count(&segment::Coverage::norms_untold, 3);
  writer_.count(&segment::Coverage::norms_untold, 4);
  EXPECT_EQ(writer_.coverage()->norms_untold, 7u);
  use(1);
  std::vector<uint64_t> ones(sizeof(segment::Layer) / sizeof(uint64_t), ~uint64_t{0});
  const uint64_t layers = header_.regions[segment::kLayers].offset;
  ASSERT_EQ(pwrite(segment_, ones.data(), sizeof(segment::Layer), static_cast<off_t>(layers)), ssize_t{208});
  layers_.mark(0, segment::kBackwardSeen, FORESHOCK_BACKWARD, 0);
  EXPECT_EQ(writer_.layers()[0].attention, segment::kHasAttention | segment::kTrainsAttention |
                                               segment::kForwardSeen | segment::kBackwardSeen);
  EXPECT_EQ(writer_.layers()[0].skipped[FORESHOCK_FORWARD], 1u << FORESHOCK_SKIP_MASK);
}

// The control file may say anything: the trainer then finds no free slot, or no room in the ring of tensors.
TEST_F(ScribbledSegment, AFaultyControlFileFreesNothing) {
  for (uint64_t ticket = 1; ticket <= kSlots; ++ticket) EXPECT_TRUE(use(ticket));
  for (const uint64_t word : {uint64_t{0}, uint64_t{kSlots + 1}, ~uint64_t{0}, ~uint64_t{0} / 2}) {
    std::vector<uint64_t> content((segment::kControlBytes - segment::kConsumptionOffset) / sizeof word, word);
    ASSERT_GT(pwrite(control_, content.data(), segment::kControlBytes - segment::kConsumptionOffset,
                     segment::kConsumptionOffset),
              0);
    EXPECT_EQ(writer_.free_slots(), 0u) << word;
    EXPECT_FALSE(use(kSlots + 1)) << word;
    ASSERT_EQ(pwrite(control_, &word, sizeof word, offsetof(segment::Control, step_cursor)), 8);
    writer_.refresh_control();
    EXPECT_LE(writer_.steps_ahead(), 100u);
    ASSERT_EQ(pwrite(control_, &word, sizeof word, offsetof(segment::Control, tensor_cursor)), 8);
    uint64_t room = 0;
    if (word > 1 << 20) {
      EXPECT_EQ(tensors_.begin(64, &room), nullptr);
    }
  }
  expect_no_change_outside();
}

// A record that is larger than the free piece of the ring is not published.
TEST_F(ScribbledSegment, ARecordStaysInTheRangeThatWasGranted) {
  uint64_t room = 0;
  ASSERT_NE(tensors_.begin(4096, &room), nullptr);
  segment::TensorRecord record = {};
  for (const uint64_t bytes : {room + 64, uint64_t{64}}) {
    record.bytes = bytes;
    tensors_.publish_snapshot(&record);
    EXPECT_EQ(tensors_.counts().written, 0u);
    EXPECT_EQ(tensors_.counts().snapshots_taken, 0u);
  }
  record.bytes = room;
  tensors_.publish_snapshot(&record);
  EXPECT_EQ(tensors_.counts().written, room);
}

TEST(SlotPlan, AHeaderWhosePayloadsLeaveTheSlotDoesNotFit) {
  Slot header = {};
  header.payload[segment::kQuery] = {sizeof header, 64};
  EXPECT_TRUE(fits(header, sizeof header + 64));
  EXPECT_FALSE(fits(header, sizeof header + 63));
  header.payload[segment::kKey] = {64, 64};  // in the header
  EXPECT_FALSE(fits(header, sizeof header + 64));
  header.payload[segment::kKey] = {~uint64_t{0} - 32, 64};  // wraps around
  EXPECT_FALSE(fits(header, sizeof header + 64));
}

}  // namespace
}  // namespace foreshock
