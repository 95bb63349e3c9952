// Measures points of a sweep: every algorithm against the fp64 reference and beside plain, over several
// seeds, on all cores. Results do not depend on the number of threads.
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

// How far a result is from its reference, and how sure a few seeds are of it.

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

// A loop over independent tasks on several threads. Tasks write only what is theirs, so the outcome does not
// depend on who runs them. Calls task(0) ... task(count - 1), each once, in no particular order. The caller's
// thread is one of `threads`.
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

// One place in the space of axes.
struct Point {
  std::string sweep = "custom";
  std::string algorithm = "plain";
  std::string format = "bf16";
  std::string accumulator;  // empty: the natural one of the format
  std::string input = "normal";
  std::string rounding = "rne";
  std::string delta = "out";  // or "probabilities"
  std::string reference =
      "stored";  // the reference takes the rounded inputs; "original": those before rounding
  int n = 1024, d = 64, rows = 256;
  int block_q = 64, block_k = 64, splits = 4;
  bool reverse = false;   // keys from the last tile to the first
  bool backward = false;  // attention only
  double scale = 1;       // of the query
  int seeds = 8;
  uint64_t first_seed = 1;
};

// One output tensor of one point.
struct Measurement {
  Point point;
  std::string tensor;  // as the family calls it (algorithm.h): "out", "grad_query", ...
  Interval max_abs, mean_abs, std_abs, relative_l2, bias_ulp, signed_sum, over_roundoff;
  double bias_z = 0;            // between seeds
  Interval ratio_to_plain;      // of relative_l2, per seed, to plain in the same format and accumulator
  Interval max_ratio_to_plain;  // of max_abs
  Interval max_from_plain;      // largest |own - plain|, both in this format
  int64_t non_finite = 0;       // elements, over all seeds
};

// An empty string when the point can be measured, else one line that says what is wrong with it.
std::string why_not(const Point& point);

// Upper estimate of the memory one thread needs for the point.
double bytes_needed(const Point& point);

// Called from one thread at a time with the share of the work that is done, 0..1.
using Progress = std::function<void(double)>;

// All points must be measurable (why_not is empty). The order of results is that of the points.
std::vector<Measurement> measure(std::span<const Point> points, int threads, const Progress& progress = {});

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_MEASURE_H_
