// Counts the values of a stored tensor piece by piece: the counters of kernels/histogram.h for any format,
// and the buffers around them. One per thread and tensor that is read at a time.
#ifndef FORESHOCK_LAB_TENSOR_COUNTER_H_
#define FORESHOCK_LAB_TENSOR_COUNTER_H_

#include <cstdlib>
#include <memory>
#include <vector>

#include "shadow/histogram.h"

namespace foreshock::lab {

class TensorCounter {
 public:
  // Adds `count` packed elements. At most 2^26 - 1 between two take().
  void count(const char* data, DType type, size_t count);

  // The histogram of what was counted; the counter is empty afterwards.
  Histogram take(DType type);

  // fp64 is counted rounded to fp32: the sum of |x - rounded x| of what was counted since the last
  // take_rounding().
  double take_rounding();

 private:
  struct Free {
    void operator()(void* words) const { std::free(words); }
  };

  void count_narrowed(const char* data, size_t count);

  // From calloc: memory that is never counted in stays untouched.
  std::unique_ptr<uint32_t[], Free> patterns_;
  std::unique_ptr<uint64_t[], Free> bins_;
  double rounding_ = 0;
};

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_TENSOR_COUNTER_H_
