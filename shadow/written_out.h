// Attention that its caller writes out in operations of PyTorch, and the errors that it may have.
#ifndef FORESHOCK_SHADOW_WRITTEN_OUT_H_
#define FORESHOCK_SHADOW_WRITTEN_OUT_H_

#include <cstdint>
#include <string_view>

namespace foreshock {

struct SliceDeviation;  // shadow/judgement.h

// Whether attention by this operation is, or may be, written out in operations of PyTorch: a seam of
// written.py, the math path, foreshock.tap. The names are those of the operations, with or without
// "_backward".
bool is_written_out(std::string_view op);

// Written-out attention rounds its weights, and its scores up to three times (four times if the function may
// have sinks), and so is as wrong as plain attention or more where this is worse than fused attention. Sets
// fused_ratio of such a slice, which decides about alarms, to the smaller of the ratio to fused attention and
// of that to plain attention divided by the root of this number; absent if either is. Takes this number times
// the bias of plain attention as a third control of unexplained_bias. Removes floor_bias, without which the
// bias of many slices gives no alarm: rounded scores are biased towards equal weights.
void allow_for_operation(std::string_view op, SliceDeviation* deviation);

// Returns what the errors of `slices` slices are compared with, `written_out` of them of written-out
// attention, as the end of "the error of ...". Every text about such an error takes the words from here.
const char* yardstick_of(uint64_t slices, uint64_t written_out);

}  // namespace foreshock

#endif  // FORESHOCK_SHADOW_WRITTEN_OUT_H_
