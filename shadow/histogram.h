// The distribution of a tensor's values: how many lie in each of 2^20 bins of the line (sign, exponent and 11
// bits of the fraction of an fp32), and their sum in each. Values of 16-bit formats lie on the edges of bins,
// so nothing of their distribution is lost. Histograms add: shards, ranks, tensors, layers.
#ifndef FORESHOCK_SHADOW_HISTOGRAM_H_
#define FORESHOCK_SHADOW_HISTOGRAM_H_

#include <cstdint>
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

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_HISTOGRAM_H_
