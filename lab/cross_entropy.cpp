#include <algorithm>
#include <limits>

#include "lab/algorithm.h"
#include "lab/reductions.h"

namespace foreshock::lab {
namespace {

enum class Keep { kStored, kRegister };

Tensor logits_of(const Tensors& inputs, Keep keep, Arithmetic& arithmetic) {
  Tensor hidden = inputs.at("hidden"), classes = inputs.at("classes");
  arithmetic.cast(hidden);
  arithmetic.cast(classes);
  Tensor logits = arithmetic.multiply(hidden, transposed(classes));
  for (double& x : logits.data) x = arithmetic.in_register(x);
  if (keep == Keep::kStored) arithmetic.store(logits);
  return logits;
}

// Log-sum-exp of a row over chunks of columns; the running state is kept as asked.
double log_sum_exp_of(const Tensor& logits, int i, int chunk, Keep keep, Arithmetic& arithmetic) {
  const auto kept = [&](double x) {
    return keep == Keep::kStored ? arithmetic.store(x) : arithmetic.in_register(x);
  };
  double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int first = 0; first < logits.cols; first += chunk) {
    const int last = std::min(first + chunk, logits.cols);
    const double tile_maximum = *std::max_element(logits.row(i) + first, logits.row(i) + last);
    const double raised = std::max(maximum, kept(tile_maximum));
    double part = 0;
    for (int j = first; j < last; ++j)
      part = arithmetic.in_register(part + arithmetic.exp(arithmetic.in_register(logits.at(i, j) - raised)));
    sum = kept(kept(kept(arithmetic.exp(maximum - raised)) * sum) + kept(part));
    maximum = raised;
  }
  return arithmetic.in_register(maximum + std::log(sum));
}

Tensors loss_and_gradient(Tensor& logits, int chunk, Keep keep, const Tensors& inputs,
                          Arithmetic& arithmetic) {
  Tensor loss(logits.rows, 1);
  for (int i = 0; i < logits.rows; ++i) {
    const int label = static_cast<int>(inputs.at("label").at(i, 0));
    const double log_sum_exp = log_sum_exp_of(logits, i, chunk, keep, arithmetic);
    loss.at(i, 0) = arithmetic.in_register(log_sum_exp - logits.at(i, label));
    for (int j = 0; j < logits.cols; ++j)
      logits.at(i, j) = arithmetic.exp(arithmetic.in_register(logits.at(i, j) - log_sum_exp));
    logits.at(i, label) = arithmetic.in_register(logits.at(i, label) - 1);
  }
  arithmetic.cast(logits);
  Tensor classes = inputs.at("classes");
  arithmetic.cast(classes);
  Tensor grad_hidden = arithmetic.multiply(logits, classes);
  arithmetic.store(grad_hidden);
  return {{"loss", std::move(loss)}, {"grad_hidden", std::move(grad_hidden)}};
}

}  // namespace

Tensors cross_entropy_plain(const Tensors& inputs, const Settings&, Arithmetic& arithmetic) {
  Tensor logits = logits_of(inputs, Keep::kStored, arithmetic);
  return loss_and_gradient(logits, logits.cols, Keep::kRegister, inputs, arithmetic);
}

Tensors cross_entropy_chunked(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  Tensor logits = logits_of(inputs, Keep::kRegister, arithmetic);
  return loss_and_gradient(logits, settings.tiling.block_k, Keep::kRegister, inputs, arithmetic);
}

Tensors cross_entropy_chunked_reimplemented(const Tensors& inputs, const Settings& settings,
                                            Arithmetic& arithmetic) {
  Tensor logits = logits_of(inputs, Keep::kRegister, arithmetic);
  return loss_and_gradient(logits, settings.tiling.block_k, Keep::kStored, inputs, arithmetic);
}

}  // namespace foreshock::lab
