// The limits above which a result of attention is at fault, by tensor and format. The constants and their
// derivations are in detect/detector.h. A tensor is 0 for the output, 1 for dQ, 2 for dK and 3 for dV.
#ifndef FORESHOCK_AGENT_LIMITS_H_
#define FORESHOCK_AGENT_LIMITS_H_

#include <cstdint>
#include <string_view>

#include "segment/layout.h"
#include "shadow/slice.h"

namespace foreshock {

// A JudgedTensor is 0 for out, 1 for grad_query, 2 for grad_key and 3 for grad_value; a pass is 0 for forward
// and 1 for backward. So out and grad_query have the number of their pass: slices of query rows check these
// two. Returns whether `tensor` is grad_key or grad_value: slices of key positions check those.
constexpr bool is_key_gradient(uint32_t tensor) { return tensor >= segment::kPasses; }

// Returns the alarm limit of fused_ratio, the error divided by that of fused attention. dK and dV are sums
// over `query_rows` rows; other tensors ignore this number.
double ratio_limit(uint32_t tensor, DType dtype, uint64_t query_rows);

// Whether the errors of a slice mostly have one sign (kOneSidedUlp). `unexplained_bias`: in ulp of the
// format.
bool is_one_sided(double unexplained_bias, DType dtype);

// The same limit for one slice: that of dQ if its errors are one-sided and `tensor` is dK or dV.
double ratio_limit(uint32_t tensor, DType dtype, uint64_t query_rows, double unexplained_bias);

// Returns the alarm limit of the bias, in ulp of the format.
double bias_limit(uint32_t tensor, DType dtype);

// Returns the format with this name (name_of(DType)); kNone if there is none.
DType dtype_named(std::string_view name);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_LIMITS_H_
