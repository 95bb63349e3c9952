#include "shadow/written_out.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "shadow/judgement.h"

namespace foreshock {

bool is_written_out(std::string_view op) {
  constexpr std::string_view kNames[] = {
      "_scaled_dot_product_attention_math",  "foreshock::tap",
      "foreshock::eager_attention",          "foreshock::megatron_attention",
      "foreshock::x_transformers_attention", "foreshock::flex_attention"};
  return std::ranges::any_of(kNames, [&](std::string_view name) { return op.starts_with(name); });
}

// Products are rounded, then multiplied by the scale and rounded, then the mask is added and the sum rounded.
// Plain attention rounds once (noise_floor.cpp). Independent roundings add up by their squares.
constexpr double kScoreRoundings = 3;

void allow_for_operation(std::string_view op, SliceDeviation* deviation) {
  if (!is_written_out(op)) return;
  deviation->floor_bias = {};
  std::optional<double>& ratio = deviation->fused_ratio;
  if (ratio && deviation->deviation_ratio)
    ratio = std::min(*ratio, *deviation->deviation_ratio / std::sqrt(kScoreRoundings));
  else
    ratio.reset();
}

}  // namespace foreshock
