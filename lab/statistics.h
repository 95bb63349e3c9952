// How far a result is from its reference, and how sure a few seeds are of it.
#ifndef FORESHOCK_LAB_STATISTICS_H_
#define FORESHOCK_LAB_STATISTICS_H_

#include <cstdint>
#include <span>

#include "lab/number_format.h"
#include "lab/tensor.h"

namespace foreshock::lab {

// One tensor of one run against its reference. A non-finite element makes every figure NaN and is counted.
struct Deviation {
  double max_abs = 0;
  double mean_abs = 0;
  double std_abs = 0;      // of |difference| over the elements
  double relative_l2 = 0;  // |difference| / |reference|
  double bias_ulp =
      0;  // sum of difference * sign(reference) over the sum of ulp(reference): > 0 is away from zero
  double towards = 0;  // the two sums of bias_ulp, for pooling
  double ulps = 0;
  double squares = 0;        // of the difference, for pooling
  double signed_sum = 0;     // of the difference
  double over_roundoff = 0;  // max_abs / (unit roundoff * largest |reference|)
  int64_t non_finite = 0;
};

// `format` is that of the result. Shapes must agree. 0 / 0 counts as 0: two equal zeros deviate by nothing.
Deviation deviation_of(const Tensor& result, const Tensor& reference, const NumberFormat& format);

// Mean over seeds and its 95 % interval by Student's t. One value: the interval is that value.
struct Interval {
  double mean = 0, low = 0, high = 0;
};
Interval interval_of(std::span<const double> values);

// Mean over its own standard error: how many standard errors the mean is from zero. 0 for fewer than two
// values.
double z_of(std::span<const double> values);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_STATISTICS_H_
