// The distribution of a tensor's values: how many lie in each of 2^20 bins of the line (sign, exponent and 11
// bits of the fraction of an fp32), and their sum in each. Values of 16-bit formats lie on the edges of bins,
// so nothing of their distribution is lost. Histograms add: shards, ranks, tensors, layers.
#ifndef FORESHOCK_SHADOW_HISTOGRAM_H_
#define FORESHOCK_SHADOW_HISTOGRAM_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/dtype.h"

namespace foreshock {

struct HistogramBin {
  uint32_t index = 0;     // 0 is the lowest on the line, 2^19 begins at +0
  uint64_t count = 0;     // > 0
  uint64_t residual = 0;  // sum of distances from the edge nearer to 0, in 1/4096 of the bin's width
  bool operator==(const HistogramBin&) const = default;
};

struct Histogram {
  std::vector<HistogramBin> bins;  // ascending, only those with values
  uint64_t finite = 0;             // the sum of their counts; -0 counts as 0
  uint64_t minus_zero = 0;         // how many of them were -0
  uint64_t not_a_number = 0, plus_infinity = 0, minus_infinity = 0;

  uint64_t non_finite() const { return not_a_number + plus_infinity + minus_infinity; }
  bool operator==(const Histogram&) const = default;
};

// The ends of bin `index` on the line. The outermost end is 2^128.
double lower_edge(uint32_t index);
double upper_edge(uint32_t index);

// Adds what the counters of kernels/histogram.h hold, and zeroes them. `type`: kBf16 or kFp16.
void take_patterns(uint32_t* words, DType type, Histogram* histogram);
void take_bins(uint64_t* words, Histogram* histogram);

// Adds `other`: counts are integers, so in any order and grouping the same bits come out.
void merge(const Histogram& other, Histogram* histogram);

// The mean of |value| over the finite values, relative error at most 2^-50; NaN when there are none.
double mean_magnitude(const Histogram& histogram);

// Histograms out of what crosses from a trainer: the values of a small tensor, or the packed counters of a
// large one. Nothing in the bytes is trusted.

// Keeps its counters from tensor to tensor. Thread-compatible. Both return false when the bytes are not of
// just `elements` values of `type` (fp32, bf16 or fp16).
class HistogramReader {
 public:
  bool read_values(std::span<const std::byte> bytes, DType type, uint64_t elements, Histogram* histogram);
  // As kernels/packed_counters.h packs them.
  bool read_counters(std::span<const std::byte> bytes, DType type, uint64_t elements, Histogram* histogram);

 private:
  void count_few(std::span<const std::byte> bytes, DType type, Histogram* histogram);
  bool unpack(std::span<const std::byte> bytes, DType type, uint64_t elements, Histogram* histogram);

  std::vector<uint64_t> bins_;
  std::vector<uint32_t> patterns_;
  std::vector<uint32_t> keys_, sorted_;
};

// A histogram as bytes: a few per bin that holds something, so a snapshot of a tensor's distribution is tens
// of kilobytes whatever the tensor's size.

// Every number as a variable-length integer, seven bits a byte, lowest first: the version (1), the five
// counts of Histogram, the number of bins, and for each bin its distance from the one before, count and
// residual.
std::string store(const Histogram& histogram);

// False for anything that store() cannot have written; nothing in `bytes` is trusted, and no more memory is
// taken than they warrant.
bool restore(std::string_view bytes, Histogram* histogram);

// The Wasserstein distance W1 of two histograms: the integral of |F - G| over the line, F and G the
// distribution functions of their finite values. Exact for 16-bit formats; for fp32 inside certified bounds,
// which come from the sum of the values in each bin: wherever F - G keeps its sign, the two bounds are one.

struct Wasserstein {
  double value = 0;          // the best estimate; in the unit of the values
  double low = 0, high = 0;  // it is in [low, high] for certain, rounding of this computation included
};

// NaN in all three when one of them has no finite value.
Wasserstein wasserstein(const Histogram& a, const Histogram& b);

// What W1 would be on average if both were independent draws from one law (their mixture), of as many values
// as they have: sqrt(2 / pi) * sqrt(1 / n + 1 / m) * integral of sqrt(F (1 - F)). Two seeds are that far
// apart; a W1 below it is drift that no comparison of unpaired weights could see. An estimate: inside a bin F
// is taken as its mean. NaN when one has no finite value.
double sampling_noise_floor(const Histogram& a, const Histogram& b);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_HISTOGRAM_H_
