// Histograms of a tensor's values: reading, adding, storing, and their Wasserstein distance. There are 2^20
// bins (sign, exponent and 11 bits of the fraction of an fp32). A bin holds the count of its values and a
// `residual`, from which their sum follows, so the mean is exact. Values of 16-bit formats are on the edges
// of bins, so their distribution is kept exactly. Histograms of shards, ranks, tensors and layers can be
// added.
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
  uint32_t index = 0;     // 0 is the bin of the lowest values; bin 2^19 begins at +0
  uint64_t count = 0;     // > 0
  uint64_t residual = 0;  // sum of distances from the edge nearer to 0, in 1/4096 of the bin's width
  bool operator==(const HistogramBin&) const = default;
};

struct Histogram {
  std::vector<HistogramBin> bins;  // in ascending order, without empty bins
  uint64_t finite = 0;             // sum of the bins' counts; -0 counts as 0
  uint64_t minus_zero = 0;         // number of finite values that are -0
  uint64_t not_a_number = 0, plus_infinity = 0, minus_infinity = 0;

  uint64_t non_finite() const { return not_a_number + plus_infinity + minus_infinity; }
  bool operator==(const Histogram&) const = default;
};

// Return the ends of bin `index` on the number line. The outermost ends are -2^128 and 2^128.
double lower_edge(uint32_t index);
double upper_edge(uint32_t index);

// Add to `histogram` the counters that count_patterns() or count_bins() (kernels/histogram.h) have filled,
// and zero these counters. `type` must be kBf16 or kFp16.
void take_patterns(uint32_t* words, DType type, Histogram* histogram);
void take_bins(uint64_t* words, Histogram* histogram);

// Adds `other` to `histogram`. Counts are integers, so the result does not depend on the order of additions.
void merge(const Histogram& other, Histogram* histogram);

// Returns the mean of |value| over the finite values (NaN: none). The relative error is at most 2^-50.
double mean_magnitude(const Histogram& histogram);

// Makes histograms from the bytes that a trainer sends: the values of a small tensor, or the packed counters
// of a large one. Both functions return false if the bytes are not exactly `elements` values of `type` (fp32,
// bf16 or fp16); read_values() also if there are more than kMostBinned (kernels/histogram.h). An object is
// reused for many tensors. Thread-compatible.
class HistogramReader {
 public:
  bool read_values(std::span<const std::byte> bytes, DType type, uint64_t elements, Histogram* histogram);
  // `bytes` are in the format of kernels/histogram.h.
  bool read_counters(std::span<const std::byte> bytes, DType type, uint64_t elements, Histogram* histogram);

 private:
  void count_few(std::span<const std::byte> bytes, DType type, Histogram* histogram);
  bool unpack(std::span<const std::byte> bytes, DType type, uint64_t elements, Histogram* histogram);

  std::vector<uint64_t> bins_;
  std::vector<uint32_t> patterns_;
  std::vector<uint32_t> keys_, sorted_;  // working memory of count_few()
};

// Serializes a histogram: a few bytes per non-empty bin, so tens of kilobytes for a tensor of any size. Every
// number is a variable-length integer, seven bits a byte, lowest first. The numbers are the version (1), the
// five counts of Histogram and the number of bins, then for each bin the distance of its index from the
// previous bin's, its count and its residual.
std::string store(const Histogram& histogram);

// Reads the output of store(). Returns false for any other bytes. Needs memory in proportion to their number.
bool restore(std::string_view bytes, Histogram* histogram);

// The Wasserstein distance W1 of two histograms: the integral of |F - G| over the number line, where F and G
// are the distribution functions of their finite values.
struct Wasserstein {
  double value = 0;          // the best estimate, in the unit of the values
  double low = 0, high = 0;  // certified bounds, including the rounding of this computation
};

// Computes W1, which is exact for 16-bit formats. For fp32 the sum of the values in each bin gives bounds,
// which coincide in bins where F - G keeps its sign. All members are NaN if a histogram has no finite value.
Wasserstein wasserstein(const Histogram& a, const Histogram& b);

// Returns the mean W1 of two independent samples of one distribution (the mixture of a and b) with as many
// values (n and m) as a and b: sqrt(2 / pi) * sqrt(1 / n + 1 / m) * integral of sqrt(F (1 - F)). Trainings
// with two seeds are about this far apart, so a comparison of their weights cannot show a drift with a
// smaller W1. It is an estimate, with the mean of F in each bin. NaN if a histogram has no finite value.
double sampling_noise_floor(const Histogram& a, const Histogram& b);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_HISTOGRAM_H_
