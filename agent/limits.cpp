#include "agent/limits.h"

#include <algorithm>
#include <cmath>

#include "detect/detector.h"

namespace foreshock {
namespace {

double factor_of(DType dtype) { return dtype == DType::kFp32 || dtype == DType::kFp64 ? kWiderInFp32 : 1; }

// An ulp of another format is smaller by the difference of their precisions.
double from_ulp_of_bf16(double ulp, DType dtype) {
  const DType known = is_floating(dtype) ? dtype : DType::kBf16;
  return std::ldexp(ulp, format_of(known).precision - format_of(DType::kBf16).precision);
}

}  // namespace

// The rounding errors of the rows of dK and dV are independent, so their limit grows with the root of the
// number of rows, once there are more than kRowsOfLimit.
double ratio_limit(uint32_t tensor, DType dtype, uint64_t query_rows) {
  const double of_format = factor_of(dtype);
  if (!is_key_gradient(tensor))
    return of_format * (tensor == 0 ? kDeviationRatioForward : kDeviationRatioBackward);
  return of_format * kDeviationRatioKeys *
         std::sqrt(std::max(1.0, static_cast<double>(query_rows) / kRowsOfLimit));
}

bool is_one_sided(double unexplained_bias, DType dtype) {
  return std::fabs(unexplained_bias) > from_ulp_of_bf16(kOneSidedUlp, dtype);
}

double ratio_limit(uint32_t tensor, DType dtype, uint64_t query_rows, double unexplained_bias) {
  const bool is_as_of_query = is_key_gradient(tensor) && is_one_sided(unexplained_bias, dtype);
  return ratio_limit(is_as_of_query ? 1 : tensor, dtype, query_rows);
}

double bias_limit(uint32_t tensor, DType dtype) {
  return from_ulp_of_bf16(is_key_gradient(tensor) ? kBiasUlpKeys : kBiasUlp, dtype);
}

DType dtype_named(std::string_view name) {
  for (const DType type : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp64})
    if (name == name_of(type)) return type;
  return DType::kNone;
}

}  // namespace foreshock
