#include "libmonitor/sampler.h"

#include <algorithm>

#include "kernels/gather.h"

namespace foreshock {
namespace {

constexpr uint64_t scramble(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A number below `bound`. The bias of at most bound / 2^32 does not matter here.
int64_t below(uint64_t random, int64_t bound) {
  return static_cast<int64_t>(((random >> 32) * static_cast<uint64_t>(bound)) >> 32);
}

// What one choice of one call depends on.
uint64_t random_of(uint64_t seed, int64_t step, uint64_t call, int rank, uint64_t purpose) {
  return mix(seed, static_cast<uint64_t>(step), call, static_cast<uint64_t>(rank) << 8 | purpose);
}

}  // namespace

uint64_t mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = scramble(seed + 0x9e3779b97f4a7c15u);
  for (uint64_t word : {a, b, c}) x = scramble(x + word + 0x9e3779b97f4a7c15u);
  return x;
}

bool is_sampled_call(uint64_t seed, int64_t step, uint64_t call, uint32_t slices, uint64_t expected_calls) {
  if (expected_calls <= slices) return slices > 0;
  // Calls lie at multiples of `slices` on a circle of `expected_calls`; those are taken that step over a
  // mark.
  const uint64_t begin = static_cast<uint64_t>(
      below(mix(seed, static_cast<uint64_t>(step), 0, 0), static_cast<int64_t>(expected_calls)));
  return (begin + call * slices) % expected_calls + slices >= expected_calls;
}

Slice choose_slice(const CallShape& shape, uint64_t seed, int64_t step, uint64_t call, int rank) {
  const auto random = [&](uint64_t purpose) { return random_of(seed, step, call, rank, purpose); };
  const int64_t group = shape.heads / shape.kv_heads;
  Slice slice;
  slice.batch = below(random(1), shape.batch);
  slice.kv_head = below(random(2), shape.kv_heads);
  slice.heads = static_cast<int>(std::min<int64_t>(group, kRowsPerSample));
  slice.first_head = slice.kv_head * group + below(random(3), group - slice.heads + 1);
  slice.parts = static_cast<int>(std::min<int64_t>(shape.queries, kRowsPerSample / slice.heads));
  slice.positions = slice.parts;
  for (uint32_t n = 0; n < static_cast<uint32_t>(slice.parts); ++n) {
    slice.fraction[n] = static_cast<uint32_t>(random(16 + n) >> 32);
    slice.position[n] = static_cast<int64_t>(position_in_part(
        static_cast<uint64_t>(shape.queries), n, static_cast<uint32_t>(slice.parts), slice.fraction[n]));
  }
  return slice;
}

uint32_t choose_place(uint64_t seed, int64_t step, uint64_t call, int rank) {
  return static_cast<uint32_t>(random_of(seed, step, call, rank, 4) >> 32);
}

}  // namespace foreshock
