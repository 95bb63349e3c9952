#include "shadow/figures.h"

#include <charconv>

namespace foreshock {
namespace {

std::string text_of(const std::optional<double>& value) { return value ? exact_text(*value) : ""; }

}  // namespace

std::string exact_text(double value) {
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

std::vector<Figure> figures_of(const SliceDeviation& d) {
  return {
      {"relative_error_mean", text_of(d.relative_error_mean)},
      {"relative_error_max", text_of(d.relative_error_max)},
      {"error_norm", exact_text(d.kernel_error_norm)},
      {"plain_error_norm", exact_text(d.plain_error_norm)},
      {"deviation_ratio", text_of(d.deviation_ratio)},
      {"effective_rows", text_of(d.effective_rows)},
      {"plain_effective_rows", text_of(d.plain_effective_rows)},
      {"bias_error_sum", exact_text(d.bias.numerator)},
      {"bias_ulp_sum", exact_text(d.bias.denominator)},
      {"rounded_reference_bias_error_sum", exact_text(d.rounded_bias.numerator)},
      {"rounded_reference_bias_ulp_sum", exact_text(d.rounded_bias.denominator)},
      {"grad_out_drift", text_of(d.grad_out_drift)},
      {"lse_error_abs_max", text_of(d.lse_error_abs_max)},
      {"logit_abs_max", text_of(d.logit_abs_max)},
      {"entropy_nats_min", text_of(d.entropy_min)},
      {"entropy_nats_mean", text_of(d.entropy_mean)},
      {"rows_compared", std::to_string(d.rows_compared)},
      {"rows_not_comparable", std::to_string(d.rows_not_comparable)},
      {"rows_with_keys", std::to_string(d.rows_with_keys)},
      {"near_tie_rows", std::to_string(d.near_tie_rows)},
      {"nonfinite_inputs", std::to_string(d.nonfinite_inputs)},
      {"nonfinite_out", std::to_string(d.nonfinite_out)},
      {"nonfinite_lse", std::to_string(d.nonfinite_lse)},
      {"nonfinite_grad_query", std::to_string(d.nonfinite_grad_query)},
  };
}

}  // namespace foreshock
