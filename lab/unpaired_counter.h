// The finite values of a tensor that stand beside one that is not: differences leave them out, and so must
// the distributions that stand beside the differences.
#ifndef FORESHOCK_LAB_UNPAIRED_COUNTER_H_
#define FORESHOCK_LAB_UNPAIRED_COUNTER_H_

#include <vector>

#include "lab/tensor_counter.h"

namespace foreshock::lab {

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

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_UNPAIRED_COUNTER_H_
