// The stabilised maximum of "Why Low-Precision Transformer Training Fails" (arXiv 2510.04212, algorithm 1):
// where the row maximum is repeated, subtract something larger, so that no P is exactly 1 and sums of equal
// values of one sign do not round one way. Softmax does not depend on the shift.
#include "lab/attention.h"
#include "lab/flash2_state.h"

namespace foreshock::lab {
namespace {

// The paper allows 2..8 and uses 7. Its code takes scores within 1e-3 of the maximum for repeats of it.
constexpr double kBeta = 7;
constexpr double kRepeatTolerance = 1e-3;

double shifted_maximum(const Tensor& scores, int i) {
  const double maximum = Arithmetic::row_max(scores, i);
  int repeats = 0;
  for (int j = 0; j < scores.cols; ++j) repeats += scores.at(i, j) >= maximum - kRepeatTolerance;
  if (repeats < 2) return maximum;
  return maximum > 0 ? kBeta * maximum : 0;
}

}  // namespace

Tensors flash2_dynamic_max(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  return flash2_state_in_format(inputs, settings, shifted_maximum, arithmetic);
}

}  // namespace foreshock::lab
