#include "libmonitor/room.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "segment/layout.h"

namespace foreshock {
namespace {

// Slots beyond this many are worth less than slots that are larger.
constexpr uint32_t kSlotsBeforeLarger = 32;

// Slices that are to go into one slot each; when fewer fit, they are split over smaller slots: so many, and
// not smaller than this.
constexpr uint64_t kFewWhole = 8, kSlotsOfParts = 32, kLeastPart = uint64_t{256} << 10;
constexpr uint64_t kLeastTensors = uint64_t{256} << 10, kMostTensors = uint64_t{4} << 20;

// The whole of a small file; empty when it cannot be read.
size_t read_small(const char* path, char* to, size_t capacity) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t got = read(fd, to, capacity - 1);
  close(fd);
  const size_t length = got > 0 ? static_cast<size_t>(got) : 0;
  to[length] = '\0';
  return length;
}

bool read_number(const char* directory, const char* file, uint64_t* value) {
  char path[512], text[64];
  if (std::snprintf(path, sizeof path, "%s/%s", directory, file) >= static_cast<int>(sizeof path))
    return false;
  if (read_small(path, text, sizeof text) == 0 || text[0] < '0' || text[0] > '9') return false;  // "max"
  *value = std::strtoull(text, nullptr, 10);
  return true;
}

uint64_t field(const char* text, const char* name) {
  const size_t length = std::strlen(name);
  for (const char* line = text; line != nullptr && *line != '\0';) {
    if (std::strncmp(line, name, length) == 0 && line[length] == ' ')
      return std::strtoull(line + length + 1, nullptr, 10);
    line = std::strchr(line, '\n');
    if (line != nullptr) ++line;
  }
  return 0;
}

uint64_t field(const char* text, const char* name, const char* name_of_all_below) {
  const uint64_t of_all = field(text, name_of_all_below);
  return of_all != 0 ? of_all : field(text, name);
}

// Of what a cgroup is charged with, what the kernel gives up before it refuses anything: cached pages of
// files that need not be written first. tmpfs is not among them, nor are locked pages. Slabs are left out:
// what of them can be reclaimed is pinned by what uses it.
uint64_t reclaimable(const char* directory) {
  char path[1300], text[8192];
  std::snprintf(path, sizeof path, "%s/memory.stat", directory);
  if (read_small(path, text, sizeof text) == 0) return 0;
  // The second names are those of version 1, for a cgroup and all below it, which is what its usage counts.
  const uint64_t cached =
      field(text, "inactive_file", "total_inactive_file") + field(text, "active_file", "total_active_file");
  const uint64_t unwritten =
      field(text, "file_dirty", "total_dirty") + field(text, "file_writeback", "total_writeback");
  return cached - std::min(cached, unwritten);
}

// What one version of cgroups calls its files; `tree` follows on the root, and `line` on the number of the
// line that names ours.
struct CgroupNames {
  const char *line, *tree, *limit, *usage;
};
constexpr CgroupNames kCgroupVersions[] = {
    {"::", "", "memory.max", "memory.current"},
    {":memory:", "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"}};

// The path of ours, up to the end of its line; null where the process has none of this version.
const char* own_path(const char* text, const char* name) {
  for (const char* line = text; line != nullptr; line = std::strchr(line, '\n')) {
    line += *line == '\n';
    const char* after = line + std::strspn(line, "0123456789");
    if (std::strncmp(after, name, std::strlen(name)) == 0) return after + std::strlen(name);
  }
  return nullptr;
}

// What the tightest cgroup of this version above us still allows; UINT64_MAX without a limit.
uint64_t headroom_of(const CgroupNames& names, const char* root, const char* text) {
  const char* path = own_path(text, names.line);
  if (path == nullptr) return UINT64_MAX;
  char directory[1200];
  const size_t of_root = std::strlen(root) + std::strlen(names.tree);
  std::snprintf(directory, sizeof directory, "%s%s%.*s", root, names.tree,
                static_cast<int>(std::strcspn(path, "\n")), path);
  uint64_t headroom = UINT64_MAX;
  for (char* cut = directory; cut != nullptr && std::strlen(directory) >= of_root;) {
    uint64_t most = 0, current = 0;
    if (read_number(directory, names.limit, &most) && read_number(directory, names.usage, &current))
      headroom =
          std::min(headroom, most - std::min(most, current - std::min(current, reclaimable(directory))));
    cut = std::strrchr(directory, '/');
    if (cut != nullptr) *cut = '\0';
  }
  return headroom;
}

uint64_t cgroup_headroom(const CgroupFiles& files) {
  char text[4096];
  if (read_small(files.self, text, sizeof text) == 0) return UINT64_MAX;
  uint64_t headroom = UINT64_MAX;
  for (const CgroupNames& names : kCgroupVersions)
    headroom = std::min(headroom, headroom_of(names, files.root, text));
  return headroom;
}

}  // namespace

bool is_on_tmpfs(const char* directory) {
  struct statfs status = {};
  return statfs(directory, &status) == 0 && status.f_type == TMPFS_MAGIC;
}

FreeMemory free_shared_memory(const char* directory, const CgroupFiles& cgroup) {
  struct statfs status = {};
  if (statfs(directory, &status) != 0 || status.f_type != TMPFS_MAGIC) return {};
  // Mounted without a size it reports no blocks at all.
  const uint64_t mounts =
      status.f_blocks == 0 ? UINT64_MAX
                           : static_cast<uint64_t>(status.f_bavail) * static_cast<uint64_t>(status.f_bsize);
  const uint64_t headroom = cgroup_headroom(cgroup);
  return {std::min(mounts, headroom), headroom < mounts};
}

uint64_t allowed_share(uint64_t free_bytes, uint64_t limit, int local_ranks) {
  return std::min(free_bytes / 10 / static_cast<uint64_t>(std::max(local_ranks, 1)), limit);
}

uint64_t tensor_bytes(uint64_t share) {
  const uint64_t part = std::min(share / 16, kMostTensors);
  return part < kLeastTensors ? 0 : part / 4096 * 4096;
}

SlotPlan plan_slots(uint64_t bytes, uint64_t need) {
  if (need == 0) return {0, 0};
  if (bytes / need < kFewWhole && need > kLeastPart) {
    const uint64_t slots = std::min<uint64_t>(bytes / kLeastPart, kSlotsOfParts);
    return slots < 2 ? SlotPlan{0, 0} : SlotPlan{static_cast<uint32_t>(slots), bytes / slots / 64 * 64};
  }
  if (bytes / need < 2) return {0, 0};
  if (bytes / need >= 2 * kSlotsBeforeLarger) need *= 2;
  return {static_cast<uint32_t>(std::min<uint64_t>(bytes / need, segment::kMaxSlots)), need};
}

}  // namespace foreshock
