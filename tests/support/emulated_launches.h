// Ways to run a kernel on the emulated device, which must all give the same.
#ifndef FORESHOCK_TESTS_SUPPORT_EMULATED_LAUNCHES_H_
#define FORESHOCK_TESTS_SUPPORT_EMULATED_LAUNCHES_H_

#include <cstdint>
#include <ostream>

#include "tests/support/emulated_device.h"

namespace foreshock {

struct EmulatedLaunch {
  const char* name;
  uint32_t blocks, threads;  // of kernels whose number of threads is free
  Emulation how;
};

inline void PrintTo(const EmulatedLaunch& launch, std::ostream* to) { *to << launch.name; }

inline constexpr EmulatedLaunch kEmulatedLaunches[] = {
    {"one_thread", 1, 1, {}},
    {"seven_threads", 3, 7, {.order = 1}},
    {"usual", 4, 256, {.order = 2}},
    {"too_many_blocks", 40, 96, {.order = 3}},
    {"at_once", 6, 64, {.workers = 3, .blocks_at_once = 3, .order = 4}},
};

inline uint64_t address(const void* at) { return reinterpret_cast<uint64_t>(at); }

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_SUPPORT_EMULATED_LAUNCHES_H_
