#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "libmonitor/process.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(Room, ATenthDividedByTheRanks) {
  EXPECT_EQ(allowed_share(1000 * kMiB, 64 * kMiB, 1), 64 * kMiB);
  EXPECT_EQ(allowed_share(1000 * kMiB, 64 * kMiB, 8), 1000 * kMiB / 80);
  EXPECT_EQ(allowed_share(64 * kMiB, 64 * kMiB, 1), 64 * kMiB / 10);
  EXPECT_EQ(allowed_share(0, 64 * kMiB, 0), 0u);
}

TEST(Room, SlotsAreAsManyAsUsefulThenLarger) {
  EXPECT_EQ(plan_slots(kMiB / 8, kMiB / 8).slots, 0u);  // one slot is none
  EXPECT_EQ(plan_slots(kMiB / 4, kMiB / 16).slots, 4u);
  EXPECT_EQ(plan_slots(8 * kMiB, kMiB).slots, 8u);
  const SlotPlan roomy = plan_slots(1000 * kMiB, kMiB);
  EXPECT_EQ(roomy.slots, segment::kMaxSlots);
  EXPECT_EQ(roomy.slot_bytes, 2 * kMiB);
  EXPECT_EQ(plan_slots(64 * kMiB, 0).slots, 0u);
}

TEST(Room, WhereFewSlicesFitASliceTakesSeveralSlots) {
  for (uint64_t need : {9 * kMiB, 40 * kMiB, 100 * kMiB}) {
    const SlotPlan plan = plan_slots(64 * kMiB, need);
    EXPECT_EQ(plan.slots, 32u);
    EXPECT_EQ(plan.slot_bytes, 2 * kMiB);
  }
  EXPECT_EQ(plan_slots(kMiB, 100 * kMiB).slots, 4u);  // not below 256 KiB
  EXPECT_EQ(plan_slots(kMiB / 4, 100 * kMiB).slots, 0u);
}

TEST(Room, OnlyMemoryCounts) {
  EXPECT_EQ(free_shared_memory("/proc").bytes, 0u);
  EXPECT_EQ(free_shared_memory("/no/such/directory").bytes, 0u);
  EXPECT_FALSE(is_on_tmpfs("/proc"));
  EXPECT_FALSE(is_on_tmpfs("/no/such/directory"));
}

// A tree as the kernel shows it: the process is in /job/task.
class RoomOfACgroup : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_on_tmpfs("/dev/shm")) GTEST_SKIP() << "no tmpfs at /dev/shm";
    std::string pattern = testing::TempDir() + "/cgroup-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    std::filesystem::create_directories(root_ + "/job/task");
    write("/self", "0::/job/task\n");
    limit("/job", "max", 0);
    limit("/job/task", "max", 0);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& file, const std::string& text) { std::ofstream(root_ + file) << text; }
  void limit(const std::string& group, const std::string& most, uint64_t used, const std::string& stat = "") {
    write(group + "/memory.max", most + "\n");
    write(group + "/memory.current", std::to_string(used) + "\n");
    write(group + "/memory.stat", stat);
  }
  FreeMemory free() {
    const std::string self = root_ + "/self";
    return free_shared_memory("/dev/shm", {self.c_str(), root_.c_str()});
  }
  std::string root_;
};

// Half of what is left counts: the other half is for the image of the segment.
TEST_F(RoomOfACgroup, TheTightestOneBounds) {
  EXPECT_FALSE(free().limited_by_cgroup);
  EXPECT_GT(free().bytes, 0u);
  limit("/job/task", std::to_string(10 * kMiB), 9 * kMiB + 4096);
  EXPECT_EQ(2 * free().bytes, kMiB - 4096);
  EXPECT_TRUE(free().limited_by_cgroup);
  limit("/job", std::to_string(20 * kMiB), 19 * kMiB + 8192);
  EXPECT_EQ(2 * free().bytes, kMiB - 8192);
  limit("/job", std::to_string(20 * kMiB), 21 * kMiB);
  EXPECT_EQ(2 * free().bytes, 0u);
  EXPECT_TRUE(free().limited_by_cgroup);
}

// As the kernel shows version 1: a tree for each controller, and no limit is a number beyond all memory.
TEST_F(RoomOfACgroup, OfVersion1Too) {
  std::filesystem::create_directories(root_ + "/memory/job/task");
  const auto limit_of = [this](const std::string& group, uint64_t most, uint64_t used,
                               const std::string& stat = "") {
    write("/memory" + group + "/memory.limit_in_bytes", std::to_string(most) + "\n");
    write("/memory" + group + "/memory.usage_in_bytes", std::to_string(used) + "\n");
    write("/memory" + group + "/memory.stat", stat);
  };
  constexpr uint64_t kNone = 9223372036854771712u;
  write("/self", "12:memory:/job/task\n11:cpu,cpuacct:/elsewhere\n1:name=systemd:/job\n0::/job\n");
  limit_of("", kNone, 100 * kMiB);
  limit_of("/job/task", kNone, kMiB);
  EXPECT_FALSE(free().limited_by_cgroup);
  limit_of("/job", 20 * kMiB, 19 * kMiB);
  EXPECT_EQ(2 * free().bytes, kMiB);
  EXPECT_TRUE(free().limited_by_cgroup);
  limit_of("/job/task", 10 * kMiB, 10 * kMiB - 4096);
  EXPECT_EQ(2 * free().bytes, 4096u);
  // Its own pages, and those of all below it, which its usage counts.
  limit_of("/job/task", 10 * kMiB, 10 * kMiB,
           "cache 1\ndirty 0\ninactive_file 4096\nactive_file 0\ntotal_cache 1\ntotal_dirty 4096\n"
           "total_writeback 0\ntotal_inactive_file 131072\ntotal_active_file 65536\n");
  EXPECT_EQ(2 * free().bytes, uint64_t{131072 + 65536 - 4096});
  limit("/job", std::to_string(10 * kMiB), 10 * kMiB - 64);
  EXPECT_EQ(2 * free().bytes, 64u) << "the tighter of both versions";
  write("/self", "12:memory:/docker/0123\n");
  limit_of("", 8 * kMiB, 7 * kMiB);
  EXPECT_EQ(2 * free().bytes, kMiB) << "a container sees its own as the root";
}

// A training that has read a data set: its cgroup is full, of pages that the kernel drops for whoever asks.
TEST_F(RoomOfACgroup, CachedFilesAreNotInTheWay) {
  const auto stat = [](uint64_t dirty) {
    return "anon 4194304\nfile 7340032\nkernel 524288\nshmem 1048576\nfile_mapped 4096\nfile_dirty " +
           std::to_string(dirty) + "\nfile_writeback 4096\nworkingset_activate_file 77\ninactive_anon 1\n" +
           "inactive_file 4194304\nactive_file 2097152\nslab_reclaimable 131072\n";
  };
  limit("/job/task", std::to_string(12 * kMiB), 12 * kMiB, stat(0));
  EXPECT_EQ(2 * free().bytes, 6 * kMiB - 4096);
  limit("/job/task", std::to_string(12 * kMiB), 12 * kMiB, stat(kMiB));
  EXPECT_EQ(2 * free().bytes, 5 * kMiB - 4096) << "what must be written first is in the way";
  limit("/job/task", std::to_string(12 * kMiB), 12 * kMiB, stat(100 * kMiB));
  EXPECT_EQ(2 * free().bytes, 0u);
  limit("/job/task", std::to_string(12 * kMiB), kMiB, stat(0));  // figures of two moments
  EXPECT_EQ(2 * free().bytes, 12 * kMiB);
}

}  // namespace
}  // namespace foreshock
