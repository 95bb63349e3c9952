// How far apart checkpoints are: the paper's second phase. Pairs of them are put on one scale, so that a
// change of kernel stands beside a change of seed and a change of precision.
#ifndef FORESHOCK_LAB_COMPARISON_H_
#define FORESHOCK_LAB_COMPARISON_H_

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lab/checkpoint.h"
#include "shadow/difference.h"
#include "shadow/histogram.h"

namespace foreshock::lab {

// Counts the values of a stored tensor piece by piece: the counters of kernels/histogram.h for any format,
// and the buffers around them. One per thread and tensor that is read at a time.
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

// The finite values of a tensor that stand beside one that is not: differences leave them out, and so must
// the distributions that stand beside the differences.
class UnpairedCounter {
 public:
  // Looks through `count` packed elements and their partners, and adds those that are finite alone. As many
  // between two take() as a TensorCounter.
  void count(const char* data, DType type, const char* partners, DType partner_type, size_t count);

  // The histogram of what was added; the counter is empty afterwards.
  Histogram take(DType type);

 private:
  TensorCounter counter_;
  bool has_any_ = false;
  std::vector<char> alone_;
};

// `all` but for the finite values of `part`, which are among its own.
Histogram without(const Histogram& part, const Histogram& all);

struct PairOfCheckpoints {
  std::string name;
  size_t a = 0, b = 0;  // of the list of checkpoints
};

// The distance between two states of one tensor, or of all compared tensors pooled. NaN: not known.
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

// What is compared with what: which tensors the pairs of checkpoints have in common, and how they are unlike.

// One tensor in all checkpoints that have it in one shape, so that each is read once for all pairs.
struct ComparisonTask {
  struct Side {
    const Checkpoint* checkpoint = nullptr;
    Checkpoint::Place place;
  };
  struct Part {
    size_t pair = 0;                // of the results
    size_t tensor = 0;              // of that result's tensors
    size_t side_a = 0, side_b = 0;  // of `sides`
  };

  uint64_t elements = 0;
  std::vector<Side> sides;
  std::vector<Part> parts;
};

// Appends a result for each pair, with everything but its distances.
std::vector<ComparisonTask> plan_comparison(const std::vector<Checkpoint>& checkpoints,
                                            const std::vector<PairOfCheckpoints>& pairs,
                                            std::vector<PairResult>* results);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_COMPARISON_H_
