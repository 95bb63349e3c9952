#include "shadow/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/histogram.h"

namespace foreshock {
namespace {

constexpr uint32_t kZero = 1u << 19;        // the bin that begins at +0
constexpr uint32_t kInfinite = 0x7f800u;    // the magnitude from which on values are not finite
constexpr uint32_t kMagnitude = kZero - 1;  // of the upper 20 bits of an fp32, without the sign
constexpr uint32_t kSignOfFp32 = 1u << 31, kInfinityOfFp32 = 0x7f800000u;

// Where the bin that begins (towards 0) with magnitude m ends towards 0.
double edge(uint32_t magnitude) {
  if (magnitude == kInfinite) return 0x1p128;
  return std::bit_cast<float>(magnitude << kBinResidualBits);
}

uint32_t index_of(bool negative, uint32_t magnitude) {
  return negative ? kZero - 1 - magnitude : kZero + magnitude;
}

// Calls visit(bits) ascending on the line for patterns of a sign and a magnitude, `half` of each sign,
// leaving out the runs of which any_in(first) says that they are empty.
template <class AnyIn, class Visit>
void ascending(uint32_t half, AnyIn any_in, Visit visit) {
  for (uint32_t end = 2 * half; end > half; end -= kCounterRun) {
    if (!any_in(end - kCounterRun)) continue;
    for (uint32_t bits = end; bits-- > end - kCounterRun;) visit(bits);
  }
  for (uint32_t first = 0; first < half; first += kCounterRun) {
    if (!any_in(first)) continue;
    for (uint32_t bits = first; bits < first + kCounterRun; ++bits) visit(bits);
  }
}

uint64_t take(uint64_t* word) {
  const uint64_t value = *word;
  *word = 0;
  return value;
}

// What a value is, with its count, into `fresh`; the bins come ascending.
void add_value(uint32_t bits, uint64_t count, Histogram* fresh) {
  const uint32_t magnitude = bits & ~kSignOfFp32;
  if (magnitude > kInfinityOfFp32) {
    fresh->not_a_number += count;
  } else if (magnitude == kInfinityOfFp32) {
    (bits == magnitude ? fresh->plus_infinity : fresh->minus_infinity) += count;
  } else {
    fresh->finite += count;
    if (bits == kSignOfFp32) fresh->minus_zero += count;
    const bool negative = bits > kSignOfFp32;  // -0 is 0
    const uint32_t index = index_of(negative, magnitude >> kBinResidualBits);
    if (!fresh->bins.empty() && fresh->bins.back().index == index)
      fresh->bins.back().count += count;
    else
      fresh->bins.push_back({index, count, 0});
  }
}

// The counts of a pattern in all sets.
uint64_t take_pattern(uint32_t* words, uint32_t pattern) {
  uint64_t count = 0;
  for (size_t set = 0; set < kPatternSets; ++set) {
    count += words[set * kPatterns + pattern];
    words[set * kPatterns + pattern] = 0;
  }
  return count;
}

// The words of a magnitude that is not finite: what is no infinity is no number.
void take_non_finite(uint64_t* words, Histogram* fresh) {
  uint64_t all = 0;
  for (uint32_t sign : {0u, kZero}) {
    for (uint32_t m = kInfinite; m <= kMagnitude; ++m) all += take(words + (sign | m)) >> kBinCountShift;
  }
  fresh->plus_infinity = take(words + kPlusInfinityWord);
  fresh->minus_infinity = take(words + kMinusInfinityWord);
  fresh->not_a_number = all - fresh->plus_infinity - fresh->minus_infinity;
}

}  // namespace

double lower_edge(uint32_t index) { return index >= kZero ? edge(index - kZero) : -edge(kZero - index); }

double upper_edge(uint32_t index) {
  return index >= kZero ? edge(index - kZero + 1) : -edge(kZero - 1 - index);
}

void take_patterns(uint32_t* words, DType type, Histogram* histogram) {
  Histogram fresh;
  const auto any_in = [words](uint32_t first) {
    const uint32_t* run = words + first;
    return any_in_run(run) || any_in_run(run + kPatterns) || any_in_run(run + 2 * kPatterns) ||
           any_in_run(run + 3 * kPatterns);
  };
  static_assert(kPatternSets == 4);
  ascending(kPatterns / 2, any_in, [&](uint32_t pattern) {
    const uint64_t count = take_pattern(words, pattern);
    if (count > 0) add_value(fp32_bits(static_cast<uint16_t>(pattern), type), count, &fresh);
  });
  merge(fresh, histogram);
}

void take_bins(uint64_t* words, Histogram* histogram) {
  Histogram fresh;
  take_non_finite(words, &fresh);
  fresh.minus_zero = take(words + kMinusZeroWord);
  // Among the values that share its bin -0 becomes 0.
  words[kZero] -= fresh.minus_zero << kBinCountShift;
  words[0] += fresh.minus_zero << kBinCountShift;
  const auto any_in = [words](uint32_t first) { return any_in_run(words + first); };
  ascending(kZero, any_in, [&](uint32_t bits) {
    const uint64_t word = words[bits];
    if (word == 0) return;
    words[bits] = 0;
    const uint64_t count = word >> kBinCountShift;
    fresh.bins.push_back(
        {index_of(bits & kZero, bits & kMagnitude), count, word & ((uint64_t{1} << kBinCountShift) - 1)});
    fresh.finite += count;
  });
  merge(fresh, histogram);
}

void merge(const Histogram& other, Histogram* histogram) {
  std::vector<HistogramBin> bins;
  bins.reserve(std::max(histogram->bins.size(), other.bins.size()));
  auto mine = histogram->bins.begin();
  for (const HistogramBin& bin : other.bins) {
    while (mine != histogram->bins.end() && mine->index < bin.index) bins.push_back(*mine++);
    bins.push_back(bin);
    if (mine == histogram->bins.end() || mine->index != bin.index) continue;
    bins.back().count += mine->count;
    bins.back().residual += mine->residual;
    ++mine;
  }
  bins.insert(bins.end(), mine, histogram->bins.end());
  histogram->bins = std::move(bins);
  histogram->finite += other.finite;
  histogram->minus_zero += other.minus_zero;
  histogram->not_a_number += other.not_a_number;
  histogram->plus_infinity += other.plus_infinity;
  histogram->minus_infinity += other.minus_infinity;
}

double mean_magnitude(const Histogram& histogram) {
  if (histogram.finite == 0) return std::numeric_limits<double>::quiet_NaN();
  constexpr double kUnit = 1.0 / (1 << kBinResidualBits);
  double sum = 0, lost = 0;  // Neumaier's sum of terms >= 0: its error does not grow with their number
  for (const HistogramBin& bin : histogram.bins) {
    const double low = lower_edge(bin.index), high = upper_edge(bin.index);
    const double term = static_cast<double>(bin.count) * std::min(std::fabs(low), std::fabs(high)) +
                        static_cast<double>(bin.residual) * ((high - low) * kUnit);
    const double next = sum + term;
    lost += sum >= term ? (sum - next) + term : (term - next) + sum;
    sum = next;
  }
  return (sum + lost) / static_cast<double>(histogram.finite);
}

}  // namespace foreshock
