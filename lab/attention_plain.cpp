#include <algorithm>
#include <limits>

#include "lab/attention.h"
#include "lab/attention_backward.h"
#include "lab/attention_operands.h"

namespace foreshock::lab {
namespace {

// The keys from `visible` on do not exist for the row.
void hide(Tensor& scores, const Tensor& visible) {
  for (int i = 0; i < scores.rows; ++i)
    std::fill(scores.row(i) + static_cast<int>(visible.at(i, 0)), scores.row(i) + scores.cols,
              -std::numeric_limits<double>::infinity());
}

// Scores of a row become probabilities, in registers. Returns the log-sum-exp; -infinity for a row without
// keys, whose probabilities are 0.
double softmax_row(Tensor& scores, int i, const Arithmetic& arithmetic) {
  const double maximum = Arithmetic::row_max(scores, i);
  if (maximum == -std::numeric_limits<double>::infinity()) {
    std::fill(scores.row(i), scores.row(i) + scores.cols, 0.0);
    return maximum;
  }
  for (int j = 0; j < scores.cols; ++j)
    scores.at(i, j) = arithmetic.exp(arithmetic.in_register(scores.at(i, j) - maximum));
  const double sum = arithmetic.row_sum(scores, i);
  for (int j = 0; j < scores.cols; ++j) scores.at(i, j) = arithmetic.in_register(scores.at(i, j) / sum);
  return arithmetic.in_register(maximum + std::log(sum));
}

}  // namespace

Tensors attention_plain(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  const AttentionOperands x = attention_operands(inputs, settings, arithmetic);
  Tensor scores = arithmetic.multiply(x.query, transposed(x.key));
  arithmetic.store(scores);
  for (double& s : scores.data) s = arithmetic.in_register(s * x.score_scale);
  arithmetic.store(scores);
  if (const auto visible = inputs.find("visible"); visible != inputs.end()) hide(scores, visible->second);
  Tensor log_sum_exp(scores.rows, 1);
  for (int i = 0; i < scores.rows; ++i) log_sum_exp.at(i, 0) = softmax_row(scores, i, arithmetic);
  const double probability_scale = quantise(arithmetic, scores, scores.rows)[0];
  arithmetic.cast(scores);
  Tensor out = arithmetic.multiply(scores, x.value);
  for (double& o : out.data) o = arithmetic.in_register(o * x.value_scale * probability_scale);
  arithmetic.store(out);

  Tensors results{{"out", std::move(out)}, {"log_sum_exp", std::move(log_sum_exp)}};
  if (settings.backward)
    attention_backward_from(scores, inputs, settings, State::kFormat, arithmetic, results);
  return results;
}

}  // namespace foreshock::lab
