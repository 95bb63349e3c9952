#include "shadow/written_out.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "shadow/judgement.h"

namespace foreshock {

bool is_written_out(std::string_view op) {
  constexpr std::string_view kNames[] = {"_scaled_dot_product_attention_math", "foreshock::tap",
                                         "foreshock::eager_attention", "foreshock::flex_attention"};
  return std::ranges::any_of(kNames, [&](std::string_view name) { return op.starts_with(name); });
}

// Products are rounded, then multiplied by the scale and rounded, then the mask is added and the sum rounded.
// Where a head has a sink (GPT-OSS and others, among the eager functions), the largest score is subtracted in
// the storage format: a fourth rounding, of a number that is as large as the scores. Plain attention rounds
// once, and after each operation of a soft cap, as such functions do (noise_floor.cpp). Independent roundings
// add up by their squares.
double score_roundings(std::string_view op) { return op.starts_with("foreshock::eager_attention") ? 4 : 3; }

void allow_for_operation(std::string_view op, SliceDeviation* deviation) {
  if (!is_written_out(op)) return;
  // The bias that comes from rounded scores grows with their variance, so with the number of roundings.
  const auto of_all_roundings = [op](const BiasSums& once) {
    return BiasSums{score_roundings(op) * once.numerator, once.denominator};
  };
  deviation->unexplained_bias = unexplained_bias(
      deviation->bias,
      {deviation->rounded_bias, deviation->floor_bias, of_all_roundings(deviation->plain_bias)});
  deviation->floor_bias = {};
  std::optional<double>& ratio = deviation->fused_ratio;
  if (ratio && deviation->deviation_ratio)
    ratio = std::min(*ratio, *deviation->deviation_ratio / std::sqrt(score_roundings(op)));
  else
    ratio.reset();
}

const char* yardstick_of(uint64_t slices, uint64_t written_out) {
  if (slices == 0 || (written_out > 0 && written_out < slices)) return "sound attention";  // unknown, or both
  return written_out == 0 ? "fused attention" : "plain attention rounded as this one";
}

}  // namespace foreshock
