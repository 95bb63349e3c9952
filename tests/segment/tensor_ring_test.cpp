// Records of tensors from the writer to the reader, and what the parser makes of others.
#include <gtest/gtest.h>

#include <functional>

#include "segment/writer.h"
#include "tests/segment/segment_files.h"

namespace foreshock::segment {
namespace {

constexpr uint64_t kRingBytes = 64 << 10;

class TensorRingTest : public SegmentFiles {
 protected:
  void SetUp() override {
    SegmentFiles::SetUp();
    ASSERT_EQ(writer_.create({directory_.c_str(), 0, 0x10, 2, 4096, kRingBytes}), nullptr);
    tensors_.attach(writer_.tensors(), writer_.tensor_bytes(), &writer_);
  }

  // A record whose payload is `bytes` values; false when the ring is full.
  bool write(int64_t step, uint64_t elements) {
    uint64_t room = 0;
    const uint64_t need = (sizeof(TensorRecord) + 8 + 4 * elements + 63) / 64 * 64;
    TensorRecord* record = tensors_.begin(need, &room);
    if (record == nullptr) return false;
    *record = {};
    record->bytes = need;
    record->kind = TensorKind::kSnapshot;
    record->step = step;
    record->interval = record->tensors = 1;
    record->dims = 1;
    record->dtype = 2;
    for (uint32_t n = 0; n < kTensorDims; ++n) record->shape[n] = record->part[n] = 1;
    record->shape[0] = record->part[0] = static_cast<int64_t>(elements);
    record->elements = elements;
    record->form = HistogramForm::kValues;
    record->payload[kTensorHistogram] = {(sizeof(TensorRecord) + 7) / 8 * 8, 4 * elements};
    std::strcpy(record->name, "blocks.0.weight");
    char* at = reinterpret_cast<char*>(record) + record->payload[kTensorHistogram].offset;
    std::memset(at, static_cast<int>(step), 4 * elements);
    tensors_.publish_snapshot(record);
    return true;
  }

  SegmentWriter writer_;
  TensorWriter tensors_;
};

TEST_F(TensorRingTest, RecordsOfAnyLengthArriveInOrder) {
  auto reader = open();
  SegmentReader::ReadyTensor ready;
  EXPECT_FALSE(reader->next_tensor(&ready));
  int64_t next = 1;
  for (int64_t step = 1; step <= 500; ++step) {
    ASSERT_TRUE(write(step, static_cast<uint64_t>(1 + step * 37 % 4000))) << step;
    if (step % 3 != 0) continue;
    while (reader->next_tensor(&ready)) {
      ASSERT_EQ(ready.why, nullptr) << ready.why;
      EXPECT_EQ(ready.view.record.step, next);
      EXPECT_EQ(text_of(ready.view.record.name), "blocks.0.weight");
      for (std::byte byte : ready.view.payload[kTensorHistogram])
        ASSERT_EQ(byte, static_cast<std::byte>(next)) << next;
      reader->consume_tensor();
      ++next;
    }
  }
  EXPECT_EQ(next, 499);
  EXPECT_EQ(reader->tensor_ring().snapshots_taken, 500u);
}

TEST_F(TensorRingTest, DoesNotOverwriteUnreadRecords) {
  int64_t written = 0;
  while (write(written + 1, 1000)) ++written;
  EXPECT_GT(written, 10);
  auto reader = open();
  SegmentReader::ReadyTensor ready;
  ASSERT_TRUE(reader->next_tensor(&ready));
  EXPECT_EQ(ready.view.record.step, 1);
  EXPECT_FALSE(write(99, 1000)) << "seen, but not consumed";
  reader->consume_tensor();
  EXPECT_TRUE(write(written + 1, 1000));
  for (int64_t step = 2; step <= written + 1; ++step) {
    ASSERT_TRUE(reader->next_tensor(&ready));
    ASSERT_EQ(ready.why, nullptr);
    EXPECT_EQ(ready.view.record.step, step);
    reader->consume_tensor();
  }
}

TEST_F(TensorRingTest, ANewAgentContinuesWhereTheLastOneEnded) {
  ASSERT_TRUE(write(1, 10));
  ASSERT_TRUE(write(2, 10));
  SegmentReader::ReadyTensor ready;
  {
    auto reader = open();
    ASSERT_TRUE(reader->next_tensor(&ready));
    reader->consume_tensor();
    ASSERT_TRUE(reader->next_tensor(&ready));  // and dies
  }
  auto reader = open();
  ASSERT_TRUE(reader->next_tensor(&ready));
  EXPECT_EQ(ready.view.record.step, 2);
}

TEST_F(TensorRingTest, ASegmentMayHaveNoRing) {
  SegmentWriter other;
  ASSERT_EQ(create(&other, 1, 0x20), nullptr);
  EXPECT_EQ(other.tensors(), nullptr);
  auto reader = open("1-0000000000000020");
  SegmentReader::ReadyTensor ready;
  EXPECT_FALSE(reader->next_tensor(&ready));
  EXPECT_EQ(reader->tensor_ring().tensors, 0u);
}

TEST_F(TensorRingTest, AnEmptyPayloadIsAbsentAtAnyOffset) {
  auto reader = open();
  SegmentReader::ReadyTensor ready;
  ASSERT_TRUE(write(1, 100));
  auto* record =
      reinterpret_cast<TensorRecord*>(reinterpret_cast<char*>(writer_.tensors()) + sizeof(TensorRing));
  for (const uint64_t offset : {uint64_t{0}, uint64_t{64}, record->bytes, ~uint64_t{0}}) {
    record->payload[3] = {offset, 0};
    writer_.write({{record, sizeof *record}});
    ASSERT_TRUE(reader->next_tensor(&ready)) << offset;
    EXPECT_EQ(ready.why, nullptr) << offset << ": " << ready.why;
    EXPECT_TRUE(ready.view.payload[3].empty()) << offset;
  }
}

TEST_F(TensorRingTest, SkipsInvalidRecords) {
  const std::pair<const char*, std::function<void(TensorRecord&)>> changes[] = {
      {"length", [](TensorRecord& r) { r.bytes = 63; }},
      {"no length", [](TensorRecord& r) { r.bytes = 0; }},
      {"beyond", [](TensorRecord& r) { r.bytes = uint64_t{1} << 40; }},
      {"filler", [](TensorRecord& r) { r.kind = TensorKind::kFiller; }},
      {"kind", [](TensorRecord& r) { r.kind = static_cast<TensorKind>(7); }},
      {"format", [](TensorRecord& r) { r.dtype = 1; }},
      {"step", [](TensorRecord& r) { r.step = -1; }},
      {"interval", [](TensorRecord& r) { r.interval = 0; }},
      {"endless interval", [](TensorRecord& r) { r.interval = ~uint64_t{0}; }},
      {"long interval", [](TensorRecord& r) { r.interval = (uint64_t{1} << 32) + 1; }},
      {"far step", [](TensorRecord& r) { r.step = int64_t{1} << 62; }},
      {"part of a rank",
       [](TensorRecord& r) {
         r.shape[0] = r.part[0] = int64_t{1} << 39;
         r.elements = uint64_t{1} << 39;
         r.form = HistogramForm::kBins;
       }},
      {"number", [](TensorRecord& r) { r.tensors = 0; }},
      {"dims", [](TensorRecord& r) { r.dims = 5; }},
      {"shape", [](TensorRecord& r) { r.shape[0] = 5; }},
      {"offset", [](TensorRecord& r) { r.offset[0] = 1; }},
      {"negative", [](TensorRecord& r) { r.part[1] = -1; }},
      {"overflow", [](TensorRecord& r) { r.shape[1] = r.part[1] = int64_t{1} << 62; }},
      {"elements", [](TensorRecord& r) { ++r.elements; }},
      {"form", [](TensorRecord& r) { r.form = HistogramForm::kPatterns; }},
      {"look of no size", [](TensorRecord& r) { r.kind = TensorKind::kGradientLook; }},
      {"look of another size",
       [](TensorRecord& r) {
         r.kind = TensorKind::kGradientLook;
         r.payload[kTensorGradientLook] = {512, sizeof(GradientLook) - 8};
       }},
      {"payload",
       [](TensorRecord& r) {
         r.payload[3] = {512, uint64_t{1} << 60};
       }},
      {"payload wraps",
       [](TensorRecord& r) {
         r.payload[3] = {~uint64_t{7}, 64};
       }},
      {"payload place", [](TensorRecord& r) { r.payload[kTensorHistogram].offset = 0; }},
  };
  auto reader = open();
  SegmentReader::ReadyTensor ready;
  for (const auto& [what, change] : changes) {
    uint64_t room = 0;
    ASSERT_TRUE(write(1, 100));
    auto* first =
        reinterpret_cast<TensorRecord*>(reinterpret_cast<char*>(writer_.tensors()) + sizeof(TensorRing));
    writer_.refresh_control();
    ASSERT_EQ(writer_.control()->tensor_cursor % (kRingBytes - sizeof(TensorRing)), 0u) << what;
    change(*first);
    writer_.write({{first, sizeof *first}});
    ASSERT_TRUE(reader->next_tensor(&ready)) << what;
    EXPECT_NE(ready.why, nullptr) << what;
    reader->consume_tensor();
    EXPECT_FALSE(reader->next_tensor(&ready)) << what;
    // To the end of the ring, so that the next one lies at its front again.
    const uint64_t written = writer_.tensors()->written % (kRingBytes - sizeof(TensorRing));
    TensorRecord* rest = tensors_.begin(64, &room);
    ASSERT_NE(rest, nullptr);
    ASSERT_GE(room, kRingBytes - sizeof(TensorRing) - written);
    rest->bytes = kRingBytes - sizeof(TensorRing) - written;
    rest->kind = TensorKind::kFiller;
    tensors_.publish_snapshot(rest);
    EXPECT_FALSE(reader->next_tensor(&ready)) << what;
  }
}

}  // namespace
}  // namespace foreshock::segment
