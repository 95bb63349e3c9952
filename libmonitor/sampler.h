// Which steps, calls, heads and rows are looked at. Pure: the same seed and place give the same answer on
// every rank and in every rerun.
#ifndef FORESHOCK_LIBMONITOR_SAMPLER_H_
#define FORESHOCK_LIBMONITOR_SAMPLER_H_

#include <cstdint>

namespace foreshock {

inline constexpr int kRowsPerSample = 16;

// A well mixed word from four (splitmix64's finaliser applied in turn).
uint64_t mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);

// A step is sampled when its absolute number is a multiple of the interval; an unknown step (negative) never
// is. Where the trainer tells one step of several, all up to the next one told go together: `steps` of them
// from `step` on are sampled when one of their numbers is such a multiple.
constexpr bool is_sampled_step(int64_t step, uint64_t interval, int64_t steps = 1) {
  if (step < 0 || interval == 0 || steps <= 0) return false;
  const uint64_t beyond = static_cast<uint64_t>(step) % interval;
  return (beyond == 0 ? 0 : interval - beyond) < static_cast<uint64_t>(steps);
}

// Within a sampled step, whether call number `call` gives a slice, so that exactly `slices` of the first
// `expected_calls` do (all, if there are fewer), evenly spread. Where they begin changes from step to step:
// every call has the same chance, and layers take turns.
bool is_sampled_call(uint64_t seed, int64_t step, uint64_t call, uint32_t slices, uint64_t expected_calls);

struct CallShape {
  int64_t batch, heads, kv_heads, queries, keys;
};

// The rows of one slice: heads x positions of one batch and kv-head, head-major.
struct Slice {
  int64_t batch = 0, kv_head = 0;
  int heads = 0, positions = 0;  // heads * positions <= 16
  int64_t first_head = 0;        // query heads first_head .. first_head + heads - 1
  int64_t position[kRowsPerSample] = {};
  // How these were chosen, for who must choose in a sequence of another length (kernels/gather.h).
  int parts = 0;
  uint32_t fraction[kRowsPerSample] = {};
  int rows() const { return heads * positions; }
};

// min(G, 16) query heads of one kv-head, and as many positions as still fit into 16 rows, one from each of so
// many equal parts of the sequence. All numbers of the shape are positive, and kv_heads divides heads.
Slice choose_slice(const CallShape& shape, uint64_t seed, int64_t step, uint64_t call, int rank);

// Which sequence of a packed batch: the one that holds this place in all of them, a fraction of 2^32.
uint32_t choose_place(uint64_t seed, int64_t step, uint64_t call, int rank);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_SAMPLER_H_
