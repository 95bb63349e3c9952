// How much shared memory this process may take, so that nobody runs out of it because of us.
#ifndef FORESHOCK_LIBMONITOR_ROOM_H_
#define FORESHOCK_LIBMONITOR_ROOM_H_

#include <cstdint>

namespace foreshock {

// Whether `directory` lies in memory. Set-up only, as the next one: makes system calls.
bool is_on_tmpfs(const char* directory);

// Where a process's memory cgroup is told and found.
struct CgroupFiles {
  const char* self = "/proc/self/cgroup";
  const char* root = "/sys/fs/cgroup";
};

struct FreeMemory {
  uint64_t bytes = 0;
  bool is_cgroups = false;  // the process's memory cgroup allows less than the mount has
};
// What is free on the mount of `directory` (tmpfs only; 0 elsewhere), also bounded by what the process's
// memory cgroup still allows.
FreeMemory free_shared_memory(const char* directory, const CgroupFiles& cgroup = {});

// A tenth of what is free, divided by the ranks of the node, never above `limit`. Ninety per cent and more
// stay free for the user's own shared memory.
uint64_t allowed_share(uint64_t free_bytes, uint64_t limit, int local_ranks);

// Of that share, what the ring of tensors may have; 0: too little for one.
uint64_t tensor_bytes(uint64_t share);

struct SlotPlan {
  uint32_t slots;  // 0: statistics only
  uint64_t slot_bytes;
};
// Slots for slices of `need` bytes within `bytes` for all of them. Where there is room for it a slot is twice
// as large as needed, since later calls may have longer keys; where few slices would fit, slots are smaller
// and a slice takes several. Fewer than two slots are none.
SlotPlan plan_slots(uint64_t bytes, uint64_t need);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_ROOM_H_
