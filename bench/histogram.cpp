// Measures the time of counting a tensor's values into a histogram, on the CPU in one thread. 16-bit values
// are counted by bit pattern, fp32 values by bin. Prints the CPU time beside that of reading the same bytes
// and of a vectorised sort. The measurements alternate; the fastest of several repetitions is printed.
#include "kernels/histogram.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/dtype.h"
#if FORESHOCK_VQSORT
#include <hwy/contrib/sort/vqsort.h>
#include <hwy/highway.h>
#endif

namespace foreshock {
namespace {

constexpr int kRepetitions = 7;
constexpr size_t kCachedValues = 1 << 14;  // number of values that fit into the caches of a core

// CPU time of this thread, in seconds; other work on the machine changes it less than wall time.
double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Timing {        // the shortest time of a run() so far, in nanoseconds per element
  double best = 1e30;  // before the first run(): longer than any
  template <class Work>
  void run(size_t count, Work work) {
    const double start = now();
    work();
    best = std::min(best, (now() - start) * 1e9 / static_cast<double>(count));
  }
};

// Reads all bytes, in eight independent sums, so that memory bandwidth is the limit.
uint64_t read_all(const void* data, size_t bytes) {
  const char* begin = static_cast<const char*>(data);
  uint64_t sum[8] = {};
  for (size_t n = 0; n + 64 <= bytes; n += 64) {
    for (int c = 0; c < 8; ++c) {
      uint64_t word;
      std::memcpy(&word, begin + n + 8 * c, sizeof word);
      sum[c] += word;
    }
  }
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

// Returns normally distributed values: a million random ones, repeated with another scale each time, which is
// faster than drawing all values and gives as many bit patterns.
std::vector<float> weights(size_t count) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(count);
  const size_t drawn = std::min<size_t>(count, 1 << 20);
  for (size_t n = 0; n < drawn; ++n) values[n] = normal(random);
  for (size_t n = drawn; n < count; ++n)
    values[n] = values[n % drawn] * (1 + 1e-3f * static_cast<float>(n / drawn));
  return values;
}

struct SortTiming {
  const char* keys;  // the type of the sorted values, as text
  Timing timing;
};

// Prints figures beside their bounds, which are not checked. `bound`: most ns per element of `counting`.
// 0.35: least share of the read bandwidth. `cached`: counting values in the cache.
void print(const char* title, const Timing& counting, double bound, const Timing& reading,
           const Timing& cached, const std::vector<SortTiming>& sorts) {
  std::printf("%-26s %6.3f ns/element (bound %.2f), %.2f of the read bandwidth (bound 0.35)", title,
              counting.best, bound, reading.best / counting.best);
  std::printf(", %.3f ns in cache (that would be %.2f)", cached.best, reading.best / cached.best);
  for (const SortTiming& sort : sorts)
    std::printf(", VQSort %s %6.2f ns = %.1f times", sort.keys, sort.timing.best,
                sort.timing.best / counting.best);
  std::printf("\n");
}

template <class Key>
void sort_copy([[maybe_unused]] const std::vector<Key>& values, [[maybe_unused]] std::vector<Key>* copy,
               [[maybe_unused]] Timing* timing) {
#if FORESHOCK_VQSORT
  // Sorts with and without AVX-512 (whose compressing stores may be slow); the faster sort counts.
  for (int64_t excluded_targets : {int64_t{0}, int64_t{HWY_AVX3 | HWY_AVX3_DL}}) {
    hwy::SetSupportedTargetsForTest(0);  // all targets of this CPU again
    hwy::SetSupportedTargetsForTest(hwy::SupportedTargets() & ~excluded_targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    *copy = values;
    hwy::Sorter sorter;
    timing->run(copy->size(), [&] { sorter(copy->data(), copy->size(), hwy::SortAscending()); });
  }
#endif
}

// `law`: the distribution of the values, as text.
void measure(const char* law, const std::vector<float>& fp32) {
  std::vector<uint16_t> bf16(fp32.size()), copy16;
  for (size_t n = 0; n < fp32.size(); ++n)
    bf16[n] = static_cast<uint16_t>((std::bit_cast<uint32_t>(fp32[n]) + 0x8000) >> 16);  // rounds to nearest
  std::vector<float> copy32;
  std::vector<uint32_t> words16(kPatternWords);
  std::vector<uint64_t> words32(kBinWords);
  Timing count16, count32, read16, read32, cached16, cached32;
  // Counting 16-bit values is compared with two sorts: of the values as fp32, and as 16-bit words.
  std::vector<SortTiming> sorts16{{"of fp32", {}}, {"of 16 bits", {}}}, sorts32{{"of fp32", {}}};
  uint64_t sink = 0;
  for (int i = 0; i < kRepetitions; ++i) {
    read16.run(bf16.size(), [&] { sink ^= read_all(bf16.data(), 2 * bf16.size()); });
    count16.run(bf16.size(), [&] { count_patterns(bf16.data(), bf16.size(), words16.data()); });
    read32.run(fp32.size(), [&] { sink ^= read_all(fp32.data(), 4 * fp32.size()); });
    // words32 is cleared before each pass: its counters could overflow in a second one, those of words16 not.
    std::fill(words32.begin(), words32.end(), 0);
    count32.run(fp32.size(), [&] { count_bins(fp32.data(), fp32.size(), words32.data()); });
    // Counts the same cached values repeatedly: the least time of counting with one store per value.
    const size_t rounds = fp32.size() / kCachedValues;
    cached16.run(rounds * kCachedValues, [&] {
      for (size_t n = 0; n < rounds; ++n) count_patterns(bf16.data(), kCachedValues, words16.data());
    });
    std::fill(words32.begin(), words32.end(), 0);
    cached32.run(rounds * kCachedValues, [&] {
      for (size_t n = 0; n < rounds; ++n) count_bins(fp32.data(), kCachedValues, words32.data());
    });
    if (i > 1) continue;  // sorting is slow, so it is timed in two repetitions only
    sort_copy(fp32, &copy32, &sorts16[0].timing);
    sorts32[0].timing = sorts16[0].timing;  // the same sort
    sort_copy(bf16, &copy16, &sorts16[1].timing);
  }
  if (sink == 12345) std::puts("");  // keeps the compiler from removing the reads
#if !FORESHOCK_VQSORT
  sorts16.clear();
  sorts32.clear();
  std::puts("built without Highway's sort (libhwy_contrib): nothing to compare with");
#endif
  std::printf("%s, %zu elements\n", law, fp32.size());
  print("  bf16, 65,536 patterns", count16, 0.45, read16, cached16, sorts16);
  print("  fp32, 2^20 bins", count32, 0.9, read32, cached32, sorts32);
}

}  // namespace
}  // namespace foreshock

int main() {
  constexpr size_t kCount = (size_t{1} << 26) - 1;  // most that one counter of fp32 values can count
  foreshock::measure("N(0, 0.02)", foreshock::weights(kCount));
  foreshock::measure("all equal", std::vector<float>(kCount, 0.02f));
  return 0;
}
