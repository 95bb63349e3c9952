// The bodies of our kernels on the host.
#include <cstring>

#include "kernels/device_jobs.h"
#include "tests/support/fake_cuda/world.h"

namespace fake_cuda {
namespace {

using foreshock::GatherClock;
using foreshock::GatherJob;
using foreshock::GatherPiece;

void gather(const GatherJob& job) {
  auto* clock = reinterpret_cast<GatherClock*>(job.clock);
  constexpr GatherClock kZero = {};
  if (std::memcmp(clock, &kZero, sizeof kZero) != 0) {
    Lock lock(world().mutex);
    violation("a gather found its clock in use");
  }
  for (uint32_t n = 0; n < job.pieces; ++n) {
    const GatherPiece& piece = job.piece[n];
    char* to = reinterpret_cast<char*>(job.to + piece.to);
    const auto element = static_cast<int64_t>(piece.element);
    for (uint32_t head = 0; head < piece.heads; ++head)
      for (uint32_t index = 0; index < piece.rows; ++index) {
        const int64_t row = piece.is_listed ? job.position[index] : int64_t{piece.first_row} + index;
        for (int64_t column = 0; column < piece.width; ++column, to += element) {
          const int64_t at = head * piece.head_stride + row * piece.row_stride + column * piece.column_stride;
          std::memcpy(to, reinterpret_cast<const char*>(piece.from) + at * element, piece.element);
        }
      }
  }
  const uint64_t times[2] = {1000, 1000 + job.pieces};
  std::memcpy(reinterpret_cast<void*>(job.times), times, sizeof times);
}

}  // namespace

Kernel kernel_named(const std::string& name) {
  if (name != "foreshock_gather") return nullptr;
  return [](const void* parameter) -> std::function<void()> {
    // The driver takes the parameters when the launch is made, not when it runs.
    auto job = std::make_shared<GatherJob>();
    std::memcpy(job.get(), parameter, sizeof(GatherJob));
    return [job] { gather(*job); };
  };
}

}  // namespace fake_cuda
