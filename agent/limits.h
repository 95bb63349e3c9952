// The limits above which a result of attention is at fault, by tensor and format. The constants and their
// derivations are in detect/detector.h. A tensor is 0 for the output, 1 for dQ, 2 for dK and 3 for dV.
#ifndef FORESHOCK_AGENT_LIMITS_H_
#define FORESHOCK_AGENT_LIMITS_H_

#include <cstdint>
#include <string_view>

#include "segment/layout.h"
#include "shadow/slice.h"

namespace foreshock {

struct SliceDeviation;  // shadow/judgement.h

// A JudgedTensor is 0 for out, 1 for grad_query, 2 for grad_key and 3 for grad_value; a pass is 0 for forward
// and 1 for backward. So out and grad_query have the number of their pass: slices of query rows check these
// two. Returns whether `tensor` is grad_key or grad_value: slices of key positions check those.
constexpr bool is_key_gradient(uint32_t tensor) { return tensor >= segment::kPasses; }

// Returns the alarm limit of fused_ratio, the error divided by that of fused attention. dK and dV are sums
// over `query_rows` rows; other tensors ignore this number.
double ratio_limit(uint32_t tensor, DType dtype, uint64_t query_rows);

// Returns the alarm limit of the bias, in ulp of the format.
double bias_limit(uint32_t tensor, DType dtype);

// Whether attention by this operation is, or may be, written out in operations of PyTorch: a seam of
// eager.py, the math path, foreshock.tap. The names are those of the operations, with or without "_backward".
bool is_written_out(std::string_view op);

// Written-out attention rounds its weights, and its scores up to three times, and so is as wrong as plain
// attention or more where this is worse than fused attention. Sets fused_ratio of such a slice, which decides
// about alarms, to the smaller of the ratio to fused attention and of that to plain attention divided by the
// root of 3; absent if either is. Removes floor_bias, without which a bias gives no alarm: rounded scores are
// biased towards equal weights.
void allow_for_operation(std::string_view op, SliceDeviation* deviation);

// Returns the format with this name (name_of(DType)); kNone if there is none.
DType dtype_named(std::string_view name);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_LIMITS_H_
