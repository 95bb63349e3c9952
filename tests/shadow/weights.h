// Arrays of weights and their histograms, for the tests of what is computed from histograms.
#ifndef FORESHOCK_TESTS_SHADOW_WEIGHTS_H_
#define FORESHOCK_TESTS_SHADOW_WEIGHTS_H_

#include <random>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/histogram.h"
#include "shadow/histogram.h"
#include "tests/shadow/store_rounded.h"

namespace foreshock::test {

using Values = std::vector<double>;

inline Values normal(uint64_t seed, size_t count, double sigma = 0.02, double mean = 0) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> law(mean, sigma);
  Values values(count);
  for (double& x : values) x = law(random);
  return values;
}

// The values as stored in `type`, packed; `values` becomes what the stored ones are.
inline std::vector<char> stored(DType type, Values* values) {
  std::vector<char> bytes(values->size() * size_of(type));
  for (size_t n = 0; n < values->size(); ++n) {
    store_rounded(type, (*values)[n], bytes.data(), n);
    (*values)[n] = load_as_double(bytes.data(), type, n);
  }
  return bytes;
}

inline Histogram histogram_of(DType type, const void* data, size_t count) {
  Histogram histogram;
  if (type == DType::kFp32) {
    static std::vector<uint64_t> words(kBinWords);  // taking leaves them 0
    count_bins(data, count, words.data());
    take_bins(words.data(), &histogram);
  } else {
    static std::vector<uint32_t> words(kPatternWords);
    count_patterns(data, count, words.data());
    take_patterns(words.data(), type, &histogram);
  }
  return histogram;
}

inline Histogram histogram_of(DType type, Values* values) {
  const std::vector<char> bytes = stored(type, values);
  return histogram_of(type, bytes.data(), values->size());
}

}  // namespace foreshock::test

#endif  // FORESHOCK_TESTS_SHADOW_WEIGHTS_H_
