// Measures how far apart the weights of two checkpoints are, for `foreshock compare` (the second phase of
// arXiv 2405.02803). The trainings of one pair may differ in the attention kernel, those of another in the
// seed or the precision, so that these effects can be compared. W1 is the Wasserstein distance.
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

// Counts how often each value occurs in a stored tensor, piece by piece. One object per thread and tensor.
class TensorCounter {
 public:
  // Adds `count` packed elements. At most kMostBinned (kernels/histogram.h) elements may be added between
  // two calls of take().
  void count(const char* data, DType type, size_t count);

  // Returns the histogram of the counted values and empties the counter.
  Histogram take(DType type);

  // Returns the sum of |x - rounded x| since the last call. fp64 values x are rounded to fp32 for counting.
  double take_rounding();

 private:
  struct Free {
    void operator()(void* words) const { std::free(words); }
  };

  void count_narrowed(const char* data, size_t count);  // counts fp64 values, rounded to fp32

  // Counts by bit pattern (16-bit formats) and by bin (fp32). calloc: pages without counts use no memory.
  std::unique_ptr<uint32_t[], Free> patterns_;
  std::unique_ptr<uint64_t[], Free> bins_;
  double rounding_ = 0;  // the result of take_rounding()
};

// Counts the unpaired values of a tensor: finite values whose partner, the value at the same index of the
// other tensor, is not finite. Difference leaves these pairs out, so histograms must leave them out too.
class UnpairedCounter {
 public:
  // Adds the unpaired values among `count` packed elements. The limit of TensorCounter::count() applies.
  void count(const char* data, DType type, const char* partners, DType partner_type, size_t count);

  // Returns the histogram of the added values and empties the counter.
  Histogram take(DType type);

 private:
  TensorCounter counter_;
  bool has_any_ = false;
  std::vector<char> unpaired_;  // bytes of the unpaired values of one call of count()
};

// Returns the counts of `all` minus those of `part`, which must be a subset of the finite values of `all`.
Histogram without(const Histogram& part, const Histogram& all);

struct PairOfCheckpoints {
  std::string name;
  size_t a = 0, b = 0;  // indexes in the list of checkpoints
};

// The distance between checkpoints a and b, of one tensor or of all compared tensors pooled. NaN: unknown.
struct Distance {
  uint64_t elements = 0;
  Wasserstein wasserstein;  // W1 between the distributions of the values of a and of b, with bounds
  double noise_floor = 0;   // W1 to expect from two independent draws of the same distribution
  double magnitude = 0;     // mean |a|, for comparison with the distances
  Difference difference;    // statistics of b - a, value by value
  uint64_t non_finite_a = 0, non_finite_b = 0;

  // W1 / mean |a - b|, 0 to 1. Near 1: the values moved in one direction. Near 0: they moved, but not
  // their distribution.
  double w1_over_mean_abs() const { return wasserstein.value / difference.mean_magnitude(); }
};

struct TensorDistance {
  std::string name, type_a, type_b;
  std::vector<int64_t> shape;
  Distance distance;
  bool has_same_bits = false;             // of all values; false if the types differ
  double rounding_a = 0, rounding_b = 0;  // sums of TensorCounter::take_rounding() over a and b
};

// A tensor whose shapes or types differ, or whose type is not supported. `a` and `b` are its shape, or type,
// in the two checkpoints.
struct Unlike {
  std::string name, a, b;
};

struct PairResult {
  PairOfCheckpoints pair;
  std::vector<TensorDistance> tensors;  // in the order of natural_less() (checkpoint.h)
  Distance pooled;
  std::vector<std::string> only_in_a, only_in_b;
  std::vector<Unlike> different_shapes;   // tensors whose shapes differ: not compared
  std::vector<Unlike> different_types;    // tensors whose types differ: compared nevertheless
  std::vector<Unlike> unsupported_types;  // not compared: one type or both are not fp64, fp32, bf16 or fp16
};

struct Comparison {
  std::vector<std::string> paths;  // paths of the checkpoints
  std::vector<PairResult> pairs;
  uint64_t bytes = 0;  // bytes read
  double seconds = 0;
};

// Compares all pairs; reads every tensor of a checkpoint once. The result does not depend on `threads`. One
// thread at a time calls `progress` with the share that is done, 0 to 1. Returns "" or an error of one line.
std::string compare(const std::vector<Checkpoint>& checkpoints, const std::vector<PairOfCheckpoints>& pairs,
                    int threads, const std::function<void(double)>& progress, Comparison* result);

// The work for one tensor: its comparisons among the checkpoints that have it with the same shape.
struct ComparisonTask {
  // The tensor in one checkpoint. It is read once for all pairs.
  struct Side {
    const Checkpoint* checkpoint = nullptr;
    Checkpoint::Place place;
  };
  // The comparison of two sides for one pair of checkpoints.
  struct Part {
    size_t pair = 0;                // index in the results
    size_t tensor = 0;              // index in PairResult::tensors
    size_t side_a = 0, side_b = 0;  // indexes in `sides`
  };

  uint64_t elements = 0;
  std::vector<Side> sides;
  std::vector<Part> parts;
};

// Plans which tensors are compared. Appends one result per pair, complete except for the distances.
std::vector<ComparisonTask> plan_comparison(const std::vector<Checkpoint>& checkpoints,
                                            const std::vector<PairOfCheckpoints>& pairs,
                                            std::vector<PairResult>* results);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_COMPARISON_H_
