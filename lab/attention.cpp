// Unfused (plain) attention, and the backward pass of all attention algorithms of the lab. `arithmetic`
// simulates a device: every multiplication, sum and store rounds as the device does. In comments S are the
// scores, P the probabilities, and dX is the gradient of X.
#include "lab/attention.h"

#include <algorithm>
#include <limits>

namespace foreshock::lab {
namespace {

// Rounds an intermediate result to the storage format (kStored) or as registers do (kInRegisters).
void round_intermediate(Tensor& x, Intermediates intermediates, Arithmetic& arithmetic) {
  if (intermediates == Intermediates::kStored) return arithmetic.store(x);
  for (double& v : x.data) v = arithmetic.in_register(v);
}

// The dot product of row i of a with row i of b, for each i, summed in registers.
Tensor row_dots(const Tensor& a, const Tensor& b, Intermediates intermediates, Arithmetic& arithmetic) {
  Tensor dots(a.rows, 1);
  for (int i = 0; i < a.rows; ++i) {
    double sum = 0;
    for (int j = 0; j < a.cols; ++j)
      sum = arithmetic.in_register(sum + arithmetic.in_register(a.at(i, j) * b.at(i, j)));
    dots.at(i, 0) = sum;
  }
  round_intermediate(dots, intermediates, arithmetic);
  return dots;
}

// Returns a . b. With kStored the running sum over a.cols is stored after every `block` terms.
Tensor tiled_product(const Tensor& a, const Tensor& b, int block, Intermediates intermediates,
                     Arithmetic& arithmetic) {
  if (intermediates == Intermediates::kInRegisters) return arithmetic.multiply(a, b);
  const Tensor a_transposed = transposed(a);
  Tensor total(a.rows, b.cols);
  for (int begin = 0; begin < a.cols; begin += block) {
    const int end = std::min(begin + block, a.cols);
    Tensor part = arithmetic.multiply(transposed(rows_of(a_transposed, begin, end)), rows_of(b, begin, end));
    arithmetic.store(part);
    for (size_t i = 0; i < part.data.size(); ++i) total.data[i] += part.data[i];
    arithmetic.store(total);
  }
  return total;
}

void scale_all(Tensor& x, double factor, Arithmetic& arithmetic) {
  for (double& v : x.data) v = arithmetic.in_register(v * factor);
}

// Row i sees only the first visible[i] keys: its scores with all other keys become -infinity.
void mask_invisible(Tensor& scores, const Tensor& visible) {
  for (int i = 0; i < scores.rows; ++i)
    std::fill(scores.row(i) + static_cast<int>(visible.at(i, 0)), scores.row(i) + scores.cols,
              -std::numeric_limits<double>::infinity());
}

// Replaces the scores of row i by probabilities, in registers. Returns the log-sum-exp. For a row that sees
// no key the probabilities are 0 and the log-sum-exp is -infinity.
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

void attention_backward(const Tensors& inputs, const Settings& settings, Intermediates intermediates,
                        Arithmetic& arithmetic, Tensors& results) {
  // First the scores, which the loop with exp() below replaces by the probabilities.
  Tensor probabilities = arithmetic.multiply(inputs.at("query"), transposed(inputs.at("key")));
  round_intermediate(probabilities, intermediates, arithmetic);
  scale_all(probabilities, settings.scale, arithmetic);
  round_intermediate(probabilities, intermediates, arithmetic);
  const Tensor& log_sum_exp = results.at("log_sum_exp");
  for (int i = 0; i < probabilities.rows; ++i)
    for (int j = 0; j < probabilities.cols; ++j)
      probabilities.at(i, j) =
          arithmetic.exp(arithmetic.in_register(probabilities.at(i, j) - log_sum_exp.at(i, 0)));
  round_intermediate(probabilities, intermediates, arithmetic);
  attention_backward_from(probabilities, inputs, settings, intermediates, arithmetic, results);
}

void attention_backward_from(const Tensor& probabilities, const Tensors& inputs, const Settings& settings,
                             Intermediates intermediates, Arithmetic& arithmetic, Tensors& results) {
  const Tensor& grad_out = inputs.at("grad_out");
  Tensor grad_probabilities = arithmetic.multiply(grad_out, transposed(inputs.at("value")));
  round_intermediate(grad_probabilities, intermediates, arithmetic);
  // delta is the row sums of dO * O, or of dP * P. In exact arithmetic both are equal.
  const Tensor delta = settings.delta == DeltaSource::kOut
                           ? row_dots(grad_out, results.at("out"), intermediates, arithmetic)
                           : row_dots(grad_probabilities, probabilities, intermediates, arithmetic);
  // dS = P * (dP - delta).
  Tensor grad_scores = grad_probabilities;
  for (int i = 0; i < grad_scores.rows; ++i)
    for (int j = 0; j < grad_scores.cols; ++j) {
      const double centred = arithmetic.in_register(grad_scores.at(i, j) - delta.at(i, 0));
      grad_scores.at(i, j) = arithmetic.in_register(probabilities.at(i, j) * centred);
    }
  arithmetic.cast(grad_scores);  // to the format of the operands of a multiplication
  Tensor cast_probabilities = probabilities;
  arithmetic.cast(cast_probabilities);
  const Tiling& tiling = settings.tiling;
  Tensor grad_query = tiled_product(grad_scores, inputs.at("key"), tiling.block_k, intermediates, arithmetic);
  Tensor grad_key =
      tiled_product(transposed(grad_scores), inputs.at("query"), tiling.block_q, intermediates, arithmetic);
  Tensor grad_value =
      tiled_product(transposed(cast_probabilities), grad_out, tiling.block_q, intermediates, arithmetic);
  scale_all(grad_query, settings.scale, arithmetic);
  scale_all(grad_key, settings.scale, arithmetic);
  for (Tensor* gradient : {&grad_query, &grad_key, &grad_value}) arithmetic.store(*gradient);
  results["delta"] = delta;
  results["grad_query"] = std::move(grad_query);
  results["grad_key"] = std::move(grad_key);
  results["grad_value"] = std::move(grad_value);
}

Tensors attention_plain(const Tensors& inputs, const Settings& settings, Arithmetic& arithmetic) {
  const AttentionOperands x = attention_operands(inputs, settings, arithmetic);  // in fp8: scaled and cast
  Tensor scores = arithmetic.multiply(x.query, transposed(x.key));
  arithmetic.store(scores);
  for (double& s : scores.data) s = arithmetic.in_register(s * x.score_scale);
  arithmetic.store(scores);
  if (const auto visible = inputs.find("visible"); visible != inputs.end())
    mask_invisible(scores, visible->second);
  Tensor log_sum_exp(scores.rows, 1);
  for (int i = 0; i < scores.rows; ++i) log_sum_exp.at(i, 0) = softmax_row(scores, i, arithmetic);
  // From here on `scores` has the probabilities. For fp8, quantise() divides all of them by one scale, which
  // it returns once per row, and casts them. For other formats the scale is 1.
  const double probability_scale = quantise(arithmetic, scores, scores.rows)[0];
  arithmetic.cast(scores);
  Tensor out = arithmetic.multiply(scores, x.value);
  for (double& o : out.data) o = arithmetic.in_register(o * x.value_scale * probability_scale);
  arithmetic.store(out);

  Tensors results{{"out", std::move(out)}, {"log_sum_exp", std::move(log_sum_exp)}};
  // With `backward` the format is never fp8 (why_not() of measure.h), so the scale of the probabilities is 1.
  if (settings.backward)
    attention_backward_from(scores, inputs, settings, Intermediates::kStored, arithmetic, results);
  return results;
}

}  // namespace foreshock::lab
