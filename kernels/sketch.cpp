// Linear sketches (sketch.h).
#include "kernels/sketch.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/sums.h"

namespace foreshock {
namespace {

constexpr int64_t kGroup = 16;  // elements whose signs are the bits of one hash

// The finaliser of splitmix64, whose output bits are independent of each other.
uint64_t signs_of(uint64_t seed, uint64_t group) {
  uint64_t word = seed + (group + 1) * 0x9e3779b97f4a7c15u;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
  word = (word ^ word >> 27) * 0x94d049bb133111ebu;
  return word ^ word >> 31;
}

struct Sums {
  double products[kSketchProducts] = {};
  double squares = 0;

  // Adds the elements from `index` on.
  void add(const double* values, int64_t index, int64_t count, uint64_t seed) {
    uint64_t signs = 0;
    for (int64_t n = 0; n < count; ++n) {
      const int64_t in_group = (index + n) % kGroup;
      if (n == 0 || in_group == 0) signs = signs_of(seed, static_cast<uint64_t>((index + n) / kGroup));
      const uint64_t bits = signs >> (kSketchProducts * in_group);
      const auto value = std::bit_cast<uint64_t>(values[n]);
      for (int k = 0; k < kSketchProducts; ++k)
        products[k] += std::bit_cast<double>(value ^ (bits >> k) << 63);
      squares += values[n] * values[n];
    }
  }
};

// Adds `count` elements from the row-major index `first` on, at most kSketchBlock. `shift`: the index in the
// whole tensor less that in this one.
void add_block(const TensorView& tensor, int64_t first, int64_t count, int64_t shift, uint64_t seed,
               Sums* sums) {
  double values[kSketchBlock];
  while (count > 0) {
    int64_t coordinate[4], rest = first, offset = 0;
    for (int d = 3; d >= 0; --d) {
      coordinate[d] = rest % tensor.shape[d];
      rest /= tensor.shape[d];
      offset += coordinate[d] * tensor.stride[d];
    }
    const int64_t run = std::min(count, tensor.shape[3] - coordinate[3]);  // up to the end of the row
    load_block(tensor, offset, tensor.stride[3], static_cast<size_t>(run), values);
    sums->add(values, first + shift, run, seed);
    first += run;
    count -= run;
  }
}

// Joins dimensions that lie in memory as one, so that the last one is as long as possible.
TensorView joined(const TensorView& tensor) {
  TensorView to = tensor;
  std::fill_n(to.shape, 4, 1);
  std::fill_n(to.stride, 4, 0);
  int last = 3;
  for (int d = 3; d >= 0; --d) {
    if (tensor.shape[d] == 1) continue;
    if (to.shape[last] == 1) {
      to.shape[last] = tensor.shape[d];
      to.stride[last] = tensor.stride[d];
    } else if (tensor.stride[d] == to.shape[last] * to.stride[last]) {
      to.shape[last] *= tensor.shape[d];
    } else {
      --last;
      to.shape[last] = tensor.shape[d];
      to.stride[last] = tensor.stride[d];
    }
  }
  return to;
}

}  // namespace

bool add_sketch(const TensorView& given, uint64_t seed, double (&products)[kSketchProducts], double* norm,
                int64_t first, int64_t whole) {
  if (given.dtype != DType::kFp64 && given.dtype != DType::kFp32 && given.dtype != DType::kBf16 &&
      given.dtype != DType::kFp16)
    return false;
  const TensorView tensor = joined(given);
  const int64_t own = element_count(tensor), elements = whole == 0 ? own : whole;
  if (first < 0 || first > elements - own) return false;
  const int64_t blocks = (elements + kSketchBlock - 1) / kSketchBlock;
  const int64_t read = std::min(blocks, kMostSketched / kSketchBlock);
  Sums sums;
  for (int64_t n = 0; n < read; ++n) {
    const int64_t block = n * blocks / read * kSketchBlock;
    const int64_t begin = std::max(block, first), end = std::min(block + kSketchBlock, first + own);
    if (begin < end) add_block(tensor, begin - first, end - begin, first, seed, &sums);
  }
  for (int k = 0; k < kSketchProducts; ++k) products[k] += sums.products[k];
  *norm += std::sqrt(sums.squares);
  return true;
}

}  // namespace foreshock
