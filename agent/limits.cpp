#include "agent/limits.h"

#include <algorithm>
#include <cmath>

#include "detect/detector.h"

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

DType dtype_named(std::string_view name) {
  for (const DType type : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp64})
    if (name == name_of(type)) return type;
  return DType::kNone;
}

}  // namespace foreshock
