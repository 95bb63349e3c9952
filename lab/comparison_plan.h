// What is compared with what: which tensors the pairs of checkpoints have in common, and how they are unlike.
#ifndef FORESHOCK_LAB_COMPARISON_PLAN_H_
#define FORESHOCK_LAB_COMPARISON_PLAN_H_

#include <vector>

#include "lab/comparison.h"

namespace foreshock::lab {

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

#endif  // FORESHOCK_LAB_COMPARISON_PLAN_H_
