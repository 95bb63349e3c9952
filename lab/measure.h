// Measures points (algorithm, format, sizes, inputs): for several seeds, the deviations of the algorithm, and
// of the plain (unfused) one for the same operation, from the fp64 reference.
#ifndef FORESHOCK_LAB_MEASURE_H_
#define FORESHOCK_LAB_MEASURE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lab/algorithm.h"
#include "lab/arithmetic.h"
#include "lab/inputs.h"
#include "lab/number_format.h"
#include "lab/tensor.h"

namespace foreshock::lab {

// The deviation of one tensor of one run from its reference. If the difference of an element is not finite,
// all figures but non_finite are NaN.
struct Deviation {
  double max_abs = 0;
  double mean_abs = 0;
  double std_abs = 0;        // standard deviation of |difference| over the elements
  double relative_l2 = 0;    // L2 norm of the difference / L2 norm of the reference
  double bias_ulp = 0;       // outward / ulps (below); positive: the result is biased away from zero
  double outward = 0;        // sum of difference * sign(reference); the sign of 0 is +1
  double ulps = 0;           // sum of ulp(reference)
  double squares = 0;        // sum of squares of the difference, for pooling
  double signed_sum = 0;     // sum of the difference
  double over_roundoff = 0;  // max_abs / (unit roundoff * largest |reference|)
  int64_t non_finite = 0;    // elements whose difference is not finite
};

// `format` is the format of the result. Shapes must agree. A figure that is a quotient 0 / 0 is 0.
Deviation deviation_of(const Tensor& result, const Tensor& reference, const NumberFormat& format);

// Mean over seeds and its 95 % interval by Student's t. With a single value, the interval is that value.
struct Interval {
  double mean = 0, low = 0, high = 0;
};
Interval interval_of(std::span<const double> values);

// The mean divided by its standard error. 0 for fewer than two values.
double z_of(std::span<const double> values);

// Calls task(0) ... task(count - 1), each once, in `threads` threads including the caller's, in any order.
// Tasks must be independent of each other, so that results do not depend on the number of threads.
template <class Task>
void parallel_for(size_t count, int threads, const Task& task) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) task(i);
  };
  std::vector<std::jthread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work);
  work();
}

// What is measured; a sweep varies some of the members. inputs.h, algorithm.h, number_format.h, accumulator.h
// and rounding.h list the valid names.
struct Point {
  std::string sweep = "custom";
  std::string algorithm = "plain";
  std::string format = "bf16";
  std::string accumulator;  // "": natural_accumulator() of the format
  std::string input = "normal";
  std::string rounding = "rne";  // to nearest, ties to even
  // Backward passes subtract a sum, delta, from each row of dP: the row's sum of dO * O ("out"), or that of
  // dP * P ("probabilities"), with P the softmax weights (DeltaSource).
  std::string delta = "out";
  std::string reference = "stored";  // inputs of the reference: stored (rounded) or original
  int n = 1024, d = 64, rows = 256;  // of attention: keys, head dimension, query rows (see inputs.h)
  int block_q = 64, block_k = 64, splits = 4;  // rows and keys of a tile; parts of the keys (split_k)
  bool reverse = false;                        // tiles of keys from last to first
  bool backward = false;                       // measures the gradients too; attention only
  double scale = 1;                            // factor of the query, see make_inputs()
  int seeds = 8;
  uint64_t first_seed = 1;
};

// The figures of one output tensor of one point.
struct Measurement {
  Point point;
  std::string tensor;  // name of the output in algorithm.h: "out", "grad_query", ...
  Interval max_abs, mean_abs, std_abs, relative_l2, bias_ulp, signed_sum, over_roundoff;
  double bias_z = 0;            // z_of() the seeds' values of bias_ulp
  Interval ratio_to_plain;      // relative_l2 / relative_l2 of the plain algorithm, same seed and arithmetic
  Interval max_ratio_to_plain;  // max_abs / max_abs of the plain algorithm, same seed and arithmetic
  Interval max_from_plain;      // largest |this result - result of the plain algorithm|
  int64_t non_finite = 0;       // elements whose difference from the reference is not finite, over all seeds
};

// Returns "" if the point can be measured, else one line with the reason why it cannot.
std::string why_not(const Point& point);

// Upper estimate of the memory one thread needs for the point.
double bytes_needed(const Point& point);

// Called from one thread at a time with the share of the work that is done, 0..1.
using Progress = std::function<void(double)>;

// why_not() of all points must be "". Returns one measurement per point and output tensor, in that order.
std::vector<Measurement> measure(std::span<const Point> points, int threads, const Progress& progress = {});

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_MEASURE_H_
