// Files of a segment that another process truncates or writes into, and a trainer that takes our descriptor
// or lowers its limits: the trainer goes on, and the agent says what is damaged.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "segment/checksum.h"
#include "tests/segment/segment_files.h"

namespace foreshock::segment {
namespace {

class DamagedFiles : public SegmentFiles {
 protected:
  void SetUp() override {
    SegmentFiles::SetUp();
    ASSERT_EQ(create(&writer_), nullptr);
    reader_ = open();
    writer_.ops()[0].ready = 1;
    writer_.publish_facts();
  }
  std::string path(const char* suffix) const { return directory_ + "/0-0000000000000010" + suffix; }
  // What a trainer does in a step with one sampled call. Returns whether a slot was free.
  bool train(int64_t number) {
    StepRecord step = {};
    step.step = number;
    writer_.append_step(step);
    writer_.threads()[0].claimed = 1;
    ++writer_.threads()[0].calls[0];
    writer_.count(&Coverage::numbers_late, 1);
    writer_.publish_threads();
    writer_.publish_facts();
    writer_.refresh_control();
    Slot* slot = writer_.claim(++ticket_);
    if (slot == nullptr) return false;
    fill(slot, ticket_);
    writer_.publish(slot, ticket_);
    return true;
  }
  uint64_t judge_all() {
    SegmentReader::Ready ready;
    uint64_t judged = 0;
    while (reader_->next_ready(&ready)) {
      judged += ready.why == nullptr;
      ready.why == nullptr ? reader_->consume_judged(ready) : reader_->consume_lost(ready, ready.lost_as);
    }
    return judged;
  }

  SegmentWriter writer_;
  std::unique_ptr<SegmentReader> reader_;
  uint64_t ticket_ = 0;
};

// It is neither a signal nor the end of what the agent learns.
TEST_F(DamagedFiles, TrainerContinuesWithATruncatedSegment) {
  for (int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(train(step));
  EXPECT_EQ(judge_all(), 3u);
  EXPECT_EQ(reader_->new_steps().size(), 3u);
  EXPECT_TRUE(reader_->is_intact());
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4096}, uint64_t{1} << 18}) {
    fs::resize_file(path(".seg"), bytes);
    EXPECT_FALSE(reader_->is_intact());
    for (int64_t step = 1; step <= 9; ++step) {
      EXPECT_TRUE(train(step) && judge_all() == 1) << bytes;
      EXPECT_EQ(reader_->new_steps().size(), 1u) << bytes;
    }
  }
  EXPECT_EQ(writer_.failed_writes(), 3u) << "one for each truncation";
  EXPECT_EQ(reader_->coverage().writes_failed, 3u);
  EXPECT_EQ(reader_->coverage().numbers_late, 30u) << "what was cut off is written again";
  EXPECT_EQ(reader_->ops().size(), 1u);
  EXPECT_EQ(reader_->totals().calls[0], 30u);
  EXPECT_EQ(reader_->lost(0, Lost::kDamaged), 0u);
  EXPECT_LE(fs::file_size(path(".seg")), reader_->header().file_size);
}

TEST_F(DamagedFiles, OldSlicesAreNotTakenForNewOnes) {
  for (int64_t step = 1; step <= 4; ++step) ASSERT_TRUE(train(step));
  fs::resize_file(path(".seg"), 0);
  EXPECT_FALSE(train(5)) << "no agent has consumed the slices";
  EXPECT_EQ(judge_all(), 0u);
  EXPECT_EQ(reader_->judged(0), 0u);
}

TEST_F(DamagedFiles, LostStepsDoNotHideLaterOnes) {
  for (int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(train(step));
  fs::resize_file(path(".seg"), 0);
  for (int64_t step = 4; step <= 6; ++step) train(step);
  constexpr uint64_t kNow = 5'000'000'000, kSecond = 1'000'000'000;
  EXPECT_TRUE(reader_->new_steps(kNow).empty()) << "they might be on their way";
  EXPECT_EQ(reader_->new_steps(kNow + kSecond).size(), 3u);
  EXPECT_EQ(reader_->steps_lost(), 3u);
  EXPECT_EQ(reader_->steps_damaged(), 3u);
}

TEST_F(DamagedFiles, ATruncatedControlFileHasNoEffect) {
  reader_->set_interval(4, 1);
  for (int64_t step = 1; step <= 4; ++step) ASSERT_TRUE(train(step));
  EXPECT_EQ(writer_.control()->interval, 4u);
  EXPECT_EQ(judge_all(), 4u);
  EXPECT_EQ(writer_.free_slots(), 4u);
  for (const uint64_t bytes : {0, 100, 256}) {
    fs::resize_file(path(".ctl"), bytes);
    EXPECT_FALSE(train(5)) << bytes;
    EXPECT_EQ(writer_.free_slots(), 0u);
  }
  fs::resize_file(path(".ctl"), 0);
  writer_.refresh_control();
  EXPECT_EQ(writer_.control()->interval, 0u);
  EXPECT_EQ(writer_.control()->agent_switch, 1u);
  fs::resize_file(path(".ctl"), kControlBytes);  // zeros
  writer_.refresh_control();
  EXPECT_EQ(writer_.control()->command_switch, 1u);
}

// A trainer closes all descriptors, and the file that it opens next gets the number of ours.
// The trainer looks at all segments of its rank, and opens a lock of its rank.
TEST_F(DamagedFiles, WaitsForNoPipeInPlaceOfAnotherSegment) {
  ASSERT_EQ(mkfifo((directory_ + "/0-00000000000000aa.seg").c_str(), 0600), 0);
  SegmentWriter writer;
  EXPECT_EQ(create(&writer), nullptr);
}

TEST_F(DamagedFiles, FollowsNoLinkInPlaceOfTheLockOfItsRank) {
  fs::create_symlink(directory_ + "/elsewhere", directory_ + "/0.rank");
  SegmentWriter writer;
  EXPECT_STREQ(create(&writer), "no_directory");
  EXPECT_FALSE(fs::exists(directory_ + "/elsewhere"));
}

TEST_F(DamagedFiles, DoesNotWriteIntoAFileThatReusesTheDescriptor) {
  ASSERT_TRUE(train(1));
  int ours = -1;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const int fd = std::stoi(entry.path().filename());
    if (fs::read_symlink(entry, gone) == path(".seg") && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR)
      ours = fd;
  }
  ASSERT_GE(ours, 0);
  const std::string other = directory_ + "/other";
  const int fd = ::open(other.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(dup2(fd, ours), ours);
  errno = E2BIG;
  EXPECT_TRUE(train(2));
  EXPECT_EQ(errno, E2BIG);
  EXPECT_EQ(fs::file_size(other), 0u);
  EXPECT_GT(writer_.failed_writes(), 0u);
  close(fd);
  close(ours);
}

TEST_F(DamagedFiles, ALaterFileSizeLimitRaisesNoSignal) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {64 << 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_TRUE(train(1));
  EXPECT_GT(writer_.failed_writes(), 0u);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(reader_->new_steps().empty());
  writer_.publish_facts();
  EXPECT_GT(reader_->coverage().writes_failed, 0u);
}

TEST_F(DamagedFiles, DoesNotWriteOutsideTheImage) {
  const std::vector<char> other(64, 'x');
  const char* end = writer_.slot_region() + writer_.slot_region_bytes();
  writer_.write({{other.data(), other.size()}, {end, 1}, {end - 8, 16}, {end - 8, ~uint64_t{0}}});
  EXPECT_EQ(fs::file_size(path(".seg")), reader_->header().file_size);
  std::ifstream file(path(".seg"), std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(content.find("xxxxxxxx"), std::string::npos);
}

TEST_F(DamagedFiles, FindsAnyChangedByteOfASlice) {
  const uint64_t at = reader_->header().regions[kSlots].offset;
  const int fd = ::open(path(".seg").c_str(), O_RDWR | O_CLOEXEC);
  uint64_t damaged = 0;
  // The ticket, dimensions, a payload's offset, the checksum, and a byte of each payload.
  std::vector<uint64_t> places = {offsetof(Slot, step), offsetof(Slot, rows), offsetof(Slot, checksum),
                                  offsetof(Slot, payload), offsetof(Slot, without_out)};
  for (uint64_t payload = 768; payload < 768 + 4 * 64; payload += 64) places.push_back(payload + 7);
  for (const uint64_t place : places) {
    ASSERT_TRUE(train(1));
    const uint64_t offset = at + ticket_ % writer_.slots() * writer_.slot_bytes() + place;
    char byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, static_cast<off_t>(offset)), 1);
    byte = static_cast<char>(~byte);
    ASSERT_EQ(pwrite(fd, &byte, 1, static_cast<off_t>(offset)), 1);
    EXPECT_EQ(judge_all(), 0u) << place;
    EXPECT_EQ(reader_->lost(0, Lost::kDamaged) + reader_->lost(1, Lost::kDamaged), ++damaged) << place;
  }
  close(fd);
  EXPECT_TRUE(train(1)) << "the slots are free again";
}

// Its offset means nothing: neither is more read than the slice has, nor is the slice invalid.
TEST_F(DamagedFiles, AnEmptyPayloadIsAbsentAtAnyOffset) {
  const uint64_t slot_bytes = writer_.slot_bytes(), most = ~uint64_t{0};
  for (const uint64_t offset :
       {uint64_t{0}, uint64_t{64}, slot_bytes - 8, slot_bytes, slot_bytes + 8, most}) {
    Slot* slot = writer_.claim(++ticket_);
    ASSERT_NE(slot, nullptr);
    fill(slot, ticket_);
    const uint64_t end = end_of_payloads(*slot, slot_bytes);
    EXPECT_EQ(end, slot->payload[kOut].offset + slot->payload[kOut].bytes);
    slot->payload[kMask] = {offset, 0};
    EXPECT_EQ(end_of_payloads(*slot, slot_bytes), end) << offset;
    writer_.publish(slot, ticket_);
    SegmentReader::Ready ready;
    ASSERT_TRUE(reader_->next_ready(&ready)) << offset;
    EXPECT_EQ(ready.why, nullptr) << offset << ": " << ready.why;
    EXPECT_TRUE(ready.view.payload[kMask].empty()) << offset;
    EXPECT_EQ(query_of(ready), static_cast<double>(ticket_)) << offset;
    reader_->consume_judged(ready);
    EXPECT_FALSE(reader_->next_ready(&ready));
  }
}

TEST_F(DamagedFiles, ReadsNoStepsFromADamagedRing) {
  for (int64_t step = 1; step <= 100; ++step) train(step);
  const Region& region = reader_->header().regions[kSteps];
  std::mt19937_64 random(1);
  std::vector<uint64_t> content(region.record_size * region.count / sizeof(uint64_t));
  const int fd = ::open(path(".seg").c_str(), O_RDWR | O_CLOEXEC);
  for (const int kind : {0, 1, 2}) {
    for (uint64_t& word : content) word = kind == 0 ? 0 : kind == 1 ? ~uint64_t{0} : random() & ~uint64_t{1};
    ASSERT_GT(pwrite(fd, content.data(), content.size() * 8, static_cast<off_t>(region.offset)), 0);
    for (uint64_t now = 10; now < 20; ++now) EXPECT_TRUE(reader_->new_steps(now * 1'000'000'000).empty());
  }
  close(fd);
  EXPECT_EQ(reader_->steps_lost(), 0u);
}

}  // namespace
}  // namespace foreshock::segment
