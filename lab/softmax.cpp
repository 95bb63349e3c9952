#include <algorithm>
#include <limits>

#include "lab/reductions.h"

namespace foreshock::lab {
namespace {

void normalise(Tensor& x, int i, double maximum, double sum, const Arithmetic& arithmetic) {
  for (int j = 0; j < x.cols; ++j)
    x.at(i, j) = arithmetic.in_register(arithmetic.exp(arithmetic.in_register(x.at(i, j) - maximum)) / sum);
}

}  // namespace

Tensors softmax_two_pass(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  Tensor out = inputs.at("logits");
  for (int i = 0; i < out.rows; ++i) {
    const double maximum = Arithmetic::row_max(out, i);
    double sum = 0;
    for (int j = 0; j < out.cols; ++j)
      sum = arithmetic.in_register(sum + arithmetic.exp(arithmetic.in_register(out.at(i, j) - maximum)));
    normalise(out, i, maximum, sum, arithmetic);
  }
  arithmetic.store(out);
  return {{"out", std::move(out)}};
}

Tensors softmax_online(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  Tensor out = inputs.at("logits");
  for (int i = 0; i < out.rows; ++i) {
    double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int first = 0; first < out.cols; first += settings.tiling.block_k) {
      const int last = std::min(first + settings.tiling.block_k, out.cols);
      const double raised = std::max(maximum, *std::max_element(out.row(i) + first, out.row(i) + last));
      double part = 0;
      for (int j = first; j < last; ++j)
        part = arithmetic.in_register(part + arithmetic.exp(arithmetic.in_register(out.at(i, j) - raised)));
      const double kept = arithmetic.store(arithmetic.store(arithmetic.exp(maximum - raised)) * sum);
      sum = arithmetic.store(kept + arithmetic.store(part));
      maximum = raised;
    }
    normalise(out, i, maximum, sum, arithmetic);
  }
  arithmetic.store(out);
  return {{"out", std::move(out)}};
}

}  // namespace foreshock::lab
