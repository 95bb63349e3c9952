// How far apart checkpoints are: the paper's second phase. Pairs of them are put on one scale, so that a
// change of kernel stands beside a change of seed and a change of precision.
#ifndef FORESHOCK_LAB_COMPARISON_H_
#define FORESHOCK_LAB_COMPARISON_H_

#include <functional>
#include <string>
#include <vector>

#include "lab/checkpoint.h"
#include "shadow/difference.h"
#include "shadow/histogram.h"

namespace foreshock::lab {

struct PairOfCheckpoints {
  std::string name;
  size_t a = 0, b = 0;  // of the list of checkpoints
};

// Of one tensor, or of all compared tensors pooled. What is not known is NaN.
struct Distance {
  uint64_t elements = 0;
  Wasserstein wasserstein;
  double noise_floor = 0;  // W1 of independent draws, see shadow/histogram.h
  double magnitude = 0;    // mean |a|, the scale to see it on
  Difference difference;
  uint64_t non_finite_a = 0, non_finite_b = 0;

  // Near 1: values drift together. Near 0: noise that leaves the distribution where it was.
  double drift() const { return wasserstein.value / difference.mean_magnitude(); }
};

struct TensorDistance {
  std::string name, type_a, type_b;
  std::vector<int64_t> shape;
  Distance distance;
  double rounding_a = 0, rounding_b = 0;  // fp64 is counted in fp32: sums of |x - rounded x|
};

// A tensor that was not compared, or not alike: what it is in a and in b.
struct Unlike {
  std::string name, a, b;
};

struct PairResult {
  PairOfCheckpoints pair;
  std::vector<TensorDistance> tensors;  // in natural order of names
  Distance pooled;
  std::vector<std::string> only_in_a, only_in_b;
  std::vector<Unlike> shapes;     // differ: not compared
  std::vector<Unlike> types;      // differ: compared
  std::vector<Unlike> untouched;  // neither fp64, fp32, bf16 nor fp16: not compared
};

struct Comparison {
  std::vector<std::string> paths;  // of the checkpoints
  std::vector<PairResult> pairs;
  uint64_t bytes = 0;  // read
  double seconds = 0;
};

// Reads every tensor that some pair compares once. The result does not depend on `threads`. `progress` hears
// the share that is done, from one thread at a time. An empty string, or one line that names a file that
// failed.
std::string compare(const std::vector<Checkpoint>& checkpoints, const std::vector<PairOfCheckpoints>& pairs,
                    int threads, const std::function<void(double)>& progress, Comparison* result);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_COMPARISON_H_
