#include "agent/limits.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "detect/detector.h"
#include "shadow/judgement.h"

namespace foreshock {

// The rounding errors of the rows of dK and dV are independent, so their limit grows with the root of the
// number of rows, once there are more than kRowsOfLimit.
double ratio_limit(uint32_t tensor, DType dtype, uint64_t query_rows) {
  const double of_format = dtype == DType::kFp32 || dtype == DType::kFp64 ? kWiderInFp32 : 1;
  if (!is_key_gradient(tensor))
    return of_format * (tensor == 0 ? kDeviationRatioForward : kDeviationRatioBackward);
  return of_format * kDeviationRatioKeys *
         std::sqrt(std::max(1.0, static_cast<double>(query_rows) / kRowsOfLimit));
}

// The limits are in ulp of bf16. An ulp of another format is smaller by the difference of their precisions.
double bias_limit(uint32_t tensor, DType dtype) {
  const DType known = is_floating(dtype) ? dtype : DType::kBf16;
  return std::ldexp(is_key_gradient(tensor) ? kBiasUlpKeys : kBiasUlp,
                    format_of(known).precision - format_of(DType::kBf16).precision);
}

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

DType dtype_named(std::string_view name) {
  for (const DType type : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp64})
    if (name == name_of(type)) return type;
  return DType::kNone;
}

}  // namespace foreshock
