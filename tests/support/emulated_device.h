// Runs the bodies of the device's kernels on the host. Addresses in jobs are addresses of the host.
#ifndef FORESHOCK_TESTS_SUPPORT_EMULATED_DEVICE_H_
#define FORESHOCK_TESTS_SUPPORT_EMULATED_DEVICE_H_

#include <cstdint>
#include <string_view>

#include "kernels/device_jobs.h"

namespace foreshock {

struct Emulation {
  uint32_t workers = 1;         // threads of the host that the threads of a block are shared out to
  uint32_t blocks_at_once = 1;  // threads of the host that take blocks
  uint64_t order = 0;           // 0: blocks and their threads in order; else the seed of another one
  uint64_t (*now)() = nullptr;  // the device's clock; none: the host's monotonic one
};

// What launching `symbol` of kernels/device_code.h does; `job` is the struct of that kernel. Returns when all
// blocks have ended. False: there is no such kernel, or no device would launch it so.
bool run_emulated(std::string_view symbol, const LaunchShape& shape, const void* job,
                  const Emulation& how = {});

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_SUPPORT_EMULATED_DEVICE_H_
